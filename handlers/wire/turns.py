"""Turns of a conversation, as chat templates want them, made of what is no message by itself."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.wire.images import quoted
from inference.errors import InvalidInput, Member

Turn = dict[str, object]  # a message as templates want it

BETWEEN = "\n\n"  # what is said first, and what the same one says then


def opened(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return messages of which those that the system begins with are one, since most templates take one."""
    count = next((at for at, turn in enumerate(turns) if not _is_text_of_system(turn)), len(turns))
    if count < 2:
        return tuple(turns)
    text = BETWEEN.join(str(turn["content"]) for turn in turns[:count])
    return ({"role": "system", "content": text}, *turns[count:])


def needed(value: str | None, member: str, kind: str, where: str) -> str:
    """Return a member's value; raise InvalidInput if there is none, or an empty one."""
    if not value:
        raise InvalidInput(Member(where), f" is of type {kind!r} and has no `{member}`: add it")
    return value


def note_call(names: dict[str, str], id: str, name: str, where: str) -> None:
    """Note the function that a call is of, by the call's id; raise InvalidInput if another has that."""
    if id in names:
        raise InvalidInput(
            Member(where), f" is {quoted(id)}, as is that of a call before: give each call one of its own"
        )
    names[id] = name


def _is_text_of_system(turn: Turn) -> bool:
    return turn["role"] == "system" and isinstance(turn["content"], str)
