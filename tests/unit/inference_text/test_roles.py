"""Roles that a template passes over: nothing of a conversation is lost without a word."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import InvalidInput, TemplateFailed
from inference.text.chat_template import ChatTemplate
from inference.text.roles import RoleHabits, with_known_roles
from inference.text.stand_in import CHATML

# As Qwen2.5's and Qwen3's: a branch for each role that is known, and none for others
BRANCHES = (
    "{% for m in messages %}{% if m.role == 'system' or m.role == 'user' or m.role == 'assistant' %}"
    "<{{ m.role }}>{{ m.content }}{% elif m.role == 'tool' %}<result>{{ m.content }}{% endif %}{% endfor %}"
)
OBSERVING = BRANCHES.replace("== 'tool'", "== 'tool' or m.role == 'observation'")
DEVELOPING = BRANCHES.replace("m.role == 'system'", "m.role in ('system', 'developer')")
REFUSING = BRANCHES.replace("{% endif %}", "{% else %}{{ raise_exception('who?') }}{% endif %}")
PARTS = BRANCHES.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")


def roles(source: str) -> RoleHabits:
    return ChatTemplate({"default": source}, {}).roles(has_tools=False)


def said_by(role: str) -> dict[str, Any]:
    return {"role": role, "content": "Be brief."}


@pytest.mark.parametrize("source", [BRANCHES, OBSERVING, REFUSING, PARTS])
def test_what_a_developer_says_the_system_says_where_a_template_knows_none(source: str) -> None:
    (message,) = with_known_roles([said_by("developer")], roles(source))
    assert message == said_by("system")


@pytest.mark.parametrize("source", [CHATML, DEVELOPING])
def test_a_developer_stays_one_where_a_template_shows_it(source: str) -> None:
    (message,) = with_known_roles([said_by("developer")], roles(source))
    assert message == said_by("developer")


@pytest.mark.parametrize("source", [BRANCHES, DEVELOPING, PARTS])
def test_a_role_that_a_template_passes_over_is_refused_with_its_place(source: str) -> None:
    with pytest.raises(InvalidInput, match=r"`messages\[1\]\.role` is 'critic', .* use one of these$"):
        with_known_roles([said_by("user"), said_by("critic")], roles(source))


@pytest.mark.parametrize("role", ["function", "model", "critic"])
def test_a_role_that_a_template_names_for_something_else_or_out_of_turn_is_refused(role: str) -> None:
    """As DeepSeek's name `function`, which is a type of tools, and Llama 2's insist on turns."""
    other = BRANCHES + "{% if tools and tools[0].type == 'function' or false == 'model' %}!{% endif %}"
    turns = other.replace(
        "%}{% if m.role == 'system'",
        "%}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns!') }}{% endif %}"
        "{% if m.role == 'system'",
        1,
    )
    for source in (other, turns):
        with pytest.raises(InvalidInput, match=f"`messages.1..role` is '{role}'"):
            with_known_roles([said_by("user"), said_by(role)], roles(source))


def test_a_long_role_is_shown_in_part() -> None:
    with pytest.raises(InvalidInput) as refused:
        with_known_roles([said_by("r" * 10_000)], roles(BRANCHES))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(("source", "role"), [(OBSERVING, "observation"), (CHATML, "critic")])
def test_a_role_that_a_template_shows_is_given_to_it(source: str, role: str) -> None:
    assert with_known_roles([said_by(role)], roles(source)) == [said_by(role)]


def test_a_template_that_refuses_a_role_says_so_itself() -> None:
    template = ChatTemplate({"default": REFUSING}, {})
    chat = with_known_roles([said_by("critic")], template.roles(has_tools=False))
    with pytest.raises(TemplateFailed, match="who"):
        template.render(chat)


def test_the_four_roles_are_never_touched() -> None:
    chat = [said_by(role) for role in ("system", "user", "assistant", "tool")]
    assert with_known_roles(chat, roles("{{ messages[0].content }}")) == chat


LATE = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    said_by("system"),
    {"role": "user", "content": [{"type": "image"}]},
    {"role": "assistant", "content": "Hello"},
    said_by("system"),
]
FIRST_ONLY = BRANCHES.replace(
    "%}{% if m.role == 'system'",
    "%}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}{% endif %}"
    "{% if m.role == 'system'",
    1,
)
PASSING = BRANCHES.replace("m.role == 'system'", "(m.role == 'system' and loop.first)")


@pytest.mark.parametrize("source", [FIRST_ONLY, PASSING])
def test_what_the_system_says_late_the_user_says_where_a_template_refuses_or_loses_it(source: str) -> None:
    first, asked, answer, last = with_known_roles(LATE, roles(source))
    assert (first, answer) == (LATE[0], LATE[4])
    assert asked["role"] == last["role"] == "user"
    texts = [part.get("text") for part in asked["content"]]
    assert texts == ["Hi", "\n\n", "Be brief.", "\n\n", None]
    assert last["content"] == "Be brief."


@pytest.mark.parametrize("source", [CHATML, BRANCHES, DEVELOPING, PARTS])
def test_the_system_says_it_itself_where_a_template_shows_that(source: str) -> None:
    assert with_known_roles(LATE, roles(source)) == LATE
