from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.conversation import Conversation, to_conversation
from inference.errors import InvalidInput, ToolRefused

MESSAGES = [{"role": "user", "content": "Hi"}]
KNOWN = frozenset({"messages", "enable_thinking"})


def understand(**members: Any) -> Conversation:
    body: Any = {"messages": MESSAGES} | members
    return to_conversation(body)


def test_nulls_and_what_asks_for_nothing_mean_absent() -> None:
    names = ["tools", "tool_choice", "tool_prompt", "chat_template_kwargs", "continue_final_message"]
    names += ["reasoning_effort", "parallel_tool_calls"]
    assert understand() == understand(**dict.fromkeys(names))
    assert understand() == understand(tools=[], tool_choice="auto", tool_prompt="", chat_template_kwargs={})


def test_the_clients_variables_go_to_the_template() -> None:
    conversation = understand(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert conversation.variables == {"enable_thinking": False, "reasoning_effort": "low"}


@pytest.mark.parametrize("given", [None, True, False])
def test_whether_the_last_message_is_continued_has_three_answers(given: bool | None) -> None:
    assert understand(continue_final_message=given).continue_final is given


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ({}, ()),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ()),
        (
            {"chat_template_kwargs": {"a": 1, "enable_thinking": True, "b": None}},
            ("chat_template_kwargs.a", "chat_template_kwargs.b"),
        ),
        ({"reasoning_effort": "low"}, ("reasoning_effort",)),
    ],
)
def test_variables_that_the_template_does_not_mention_have_no_effect(
    members: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert understand(**members).without_effect(KNOWN) == names
    assert understand(**members).without_effect(KNOWN | {"a", "b", "reasoning_effort"}) == ()


@pytest.mark.parametrize(("choice", "names"), [("auto", ()), ("none", ("tool_prompt",))])
def test_a_prompt_for_tools_has_no_effect_where_none_may_be_called(
    choice: str, names: tuple[str, ...]
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    told = understand(tools=tools, tool_choice=choice, tool_prompt="Call.").without_effect(KNOWN)
    assert told == names
    assert understand(tool_prompt="Call.").without_effect(KNOWN) == ("tool_prompt",)
    assert understand(tool_prompt="").without_effect(KNOWN) == ()


def test_the_effort_can_not_be_given_twice_and_differ() -> None:
    same = understand(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "low"})
    assert same.variables == {"reasoning_effort": "low"}
    with pytest.raises(InvalidInput, match="`reasoning_effort` is 'low' and `chat_template_kwargs"):
        understand(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})


def test_a_tool_that_is_not_there_can_not_be_chosen() -> None:
    with pytest.raises(ToolRefused):
        understand(tool_choice="fly")
