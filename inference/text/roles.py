"""Who speaks in a conversation: roles that a chat template leaves out without a word, found by a probe.

Many templates know four roles, and pass over a message of another as if it weren't there. OpenAI's newer
clients call the system `developer`, so that what it said would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidInput, TemplateFailed
from inference.tools.habits import QUESTION, SAID, Message, Render

DEVELOPER, SYSTEM = "developer", "system"
ROLES = frozenset({SYSTEM, "user", "assistant", "tool"})  # `inference/tools/history.py` sees to the last
ODD = "probed_role"  # that no template knows by name
SHOWN_CHARACTERS = 40  # of a role, in messages


@dataclass(frozen=True, slots=True)
class RoleHabits:
    """What a template does with roles beyond the four that all know."""

    shows_developer: bool = True
    drops_others: bool = False  # without a word, but for those it names
    named: frozenset[str] = frozenset()  # the texts in the template


def probe_roles(render: Render, constants: frozenset[str]) -> RoleHabits:
    """Return what a template, in which these texts stand, does with roles."""
    told = _attempt(render, ODD)
    return RoleHabits(
        shows_developer=SAID in _attempt(render, DEVELOPER),
        drops_others=told != "" and SAID not in told,  # a refusal is the template's to explain
        named=constants,
    )


def with_known_roles(messages: Iterable[Mapping[str, Any]], habits: RoleHabits) -> list[Mapping[str, Any]]:
    """Return messages with roles that the template shows: what developers say, the system does.

    Raises InvalidInput for a message that the template would leave out for its role.
    """
    return [_known(message, f"messages[{at}]", habits) for at, message in enumerate(messages)]


def _known(message: Mapping[str, Any], where: str, habits: RoleHabits) -> Mapping[str, Any]:
    role = message["role"]
    if role == DEVELOPER and not habits.shows_developer:
        return {**message, "role": SYSTEM}
    if role in ROLES or role in habits.named or role == DEVELOPER or not habits.drops_others:
        return message
    shown = role if len(role) <= SHOWN_CHARACTERS else f"{role[:SHOWN_CHARACTERS]}..."
    raise InvalidInput(
        f"`{where}.role` is {shown!r}, and this model's chat template leaves messages of others than "
        "`system`, `user`, `assistant` and `tool` out: use one of these"
    )


def _attempt(render: Render, role: str) -> str:
    """Return what a template makes of words that a role says first and last; "" if it refuses them."""
    words: Message = {"role": role, "content": SAID}
    try:
        return render([words, QUESTION, words], None)
    except TemplateFailed:
        return ""
