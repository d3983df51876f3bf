"""Conversations on their way to the chat template, and what is told of those that it only half knows."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.routes import prompts
from handlers.wire.conversation import to_conversation
from inference.errors import InvalidInput
from tests.unit.handlers.conftest import Start

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
TOOLS = [{"type": "function", "function": {"name": "get_time"}}]


def conversation(**members: Any) -> Any:
    body: Any = {"messages": MESSAGES} | members
    return to_conversation(body)


async def test_every_member_reaches_the_template(start: Start) -> None:
    engine = (await start()).engine
    plain = await prompts.render(engine, conversation())
    closed = await prompts.render(engine, conversation(continue_final_message=False))
    bare = {"continue_final_message": False, "chat_template_kwargs": {"add_generation_prompt": False}}
    without = await prompts.render(engine, conversation(**bare))
    tools = await prompts.render(engine, conversation(tools=TOOLS))
    asked = await prompts.render(
        engine, conversation(tools=TOOLS, tool_prompt="Call!", continue_final_message=False)
    )
    assert plain.endswith("I am")
    assert closed.startswith(without)
    assert len(closed) > len(without)
    assert "get_time" in tools
    assert "Call!" in asked


async def test_what_can_not_be_continued_is_refused(start: Start) -> None:
    engine = (await start()).engine
    asked = conversation(messages=MESSAGES[:1], continue_final_message=True)
    with pytest.raises(InvalidInput, match="continue_final_message"):
        await prompts.render(engine, asked)


async def test_variables_that_the_template_does_not_mention_are_named_in_a_header(start: Start) -> None:
    engine = (await start()).engine
    known = {"add_generation_prompt": True}
    assert prompts.ignored_headers(engine, conversation(chat_template_kwargs=known)) == {}
    odd = conversation(chat_template_kwargs={**known, "a b": 1}, reasoning_effort="low")
    assert prompts.ignored_headers(engine, odd) == {
        "x-ignored-parameters": "chat_template_kwargs.a?b,reasoning_effort"
    }
