"""Who speaks in a conversation: roles that a chat template leaves out without a word, found by a probe.

Many templates know four roles, and pass over a message of another as if it weren't there. OpenAI's newer
clients call the system `developer`, so that what it said would be lost. Claude Code has the system say
something behind the user, which templates refuse or pass over that know it at the beginning only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from inference.errors import InvalidInput, Member, TemplateFailed
from inference.tools.habits import ANSWER, QUESTION, SAID, Message, Render

DEVELOPER, SYSTEM, USER = "developer", "system", "user"
BETWEEN = "\n\n"  # what the user says, and what the system says then
ROLES = frozenset({SYSTEM, "user", "assistant", "tool"})  # `inference/tools/history.py` sees to the last
ODD = "probed_role"  # that no template knows by name
WORDS: Message = {"role": SYSTEM, "content": SAID}
LATE: tuple[list[Message], ...] = ([QUESTION, WORDS], [QUESTION, WORDS, ANSWER, QUESTION])
SHOWN_CHARACTERS = 40  # of a role, in messages


@dataclass(frozen=True, slots=True)
class RoleHabits:
    """What a template does with roles beyond the four that all know."""

    shows_developer: bool = True
    shows_late_system: bool = True  # what it says behind others
    drops_others: bool = False  # without a word, but for those it knows by name
    knows: Callable[[str], bool] = lambda role: False


def probe_roles(render: Render, constants: frozenset[str]) -> RoleHabits:
    """Return what a template, in which these texts stand, does with roles."""

    @cache  # of the texts in the template: it may name a role, or something else by the same word
    def shows(role: str) -> bool:
        told = _attempt(render, role)
        return told == "" or SAID in told  # a refusal is the template's to explain

    return RoleHabits(
        shows_developer=SAID in _attempt(render, DEVELOPER),
        shows_late_system=all(SAID in _told(render, chat) for chat in LATE),
        drops_others=not shows(ODD),
        knows=lambda role: role in constants and shows(role),
    )


def with_known_roles(messages: Iterable[Mapping[str, Any]], habits: RoleHabits) -> list[Mapping[str, Any]]:
    """Return messages with roles that the template shows: what developers say, the system does.

    What the system says behind others the user does, where the template shows it at the beginning only.
    Raises InvalidInput for a message that the template would leave out for its role.
    """
    known = [_known(message, f"messages[{at}]", habits) for at, message in enumerate(messages)]
    return known if habits.shows_late_system else _said_by_user(known)


def _known(message: Mapping[str, Any], where: str, habits: RoleHabits) -> Mapping[str, Any]:
    role = message["role"]
    if role == DEVELOPER and not habits.shows_developer:
        return {**message, "role": SYSTEM}
    if role in ROLES or role == DEVELOPER or not habits.drops_others or habits.knows(role):
        return message
    shown = role if len(role) <= SHOWN_CHARACTERS else f"{role[:SHOWN_CHARACTERS]}..."
    raise InvalidInput(
        Member(f"{where}.role"),
        f" is {shown!r}, and this model's chat template leaves messages of others than "
        "`system`, `user`, `assistant` and `tool` out: use one of these",
    )


def _said_by_user(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages of which the system's are the first, or in those of the user that they stand beside."""
    told: list[tuple[Mapping[str, Any], list[Any]]] = []  # a message, and the contents of which it is made
    begun = goes_on = False  # others than the system have spoken; the user goes on with what comes
    for message in messages:
        late = begun and message["role"] == SYSTEM
        begun = begun or message["role"] != SYSTEM
        said = {**message, "role": USER} if late else message
        if (late or goes_on) and said["role"] == told[-1][0]["role"] == USER:
            told[-1][1].append(said.get("content"))
        else:
            told.append((said, [said.get("content")]))
        goes_on = late
    return [
        message if len(contents) == 1 else {**message, "content": _put_together(contents)}
        for message, contents in told
    ]


def _put_together(contents: Sequence[str | list[Any] | None]) -> str | list[Any]:
    """Return contents as one: a text, or parts where some are that."""
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return BETWEEN.join(texts)
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": BETWEEN}] if parts else []
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return parts


def _attempt(render: Render, role: str) -> str:
    """Return what a template makes of words that a role says first and last, or in its turn.

    "" if it refuses them.
    """
    words: Message = {"role": role, "content": SAID}
    for chat in ([words, QUESTION, words], [QUESTION, words, QUESTION]):
        if told := _told(render, chat):
            return told
    return ""


def _told(render: Render, chat: list[Message]) -> str:
    """Return what a template makes of messages; "" if it refuses them."""
    with suppress(TemplateFailed):
        return render(chat, None)
    return ""
