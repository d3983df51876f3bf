"""What shapes the prompt of a chat: its messages, and the variables of the template."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import served

pytestmark = pytest.mark.anyio

TEXT = "It is sunny. Bye"
REPLIES = {"replies": {"weather": TEXT}}
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the weather?"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0}
PATH = "/v1/chat/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_assistants_last_message_is_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The weather is"}]
    async with served() as server:
        text = (await server.post("/chat_tokenize", {"messages": messages})).json()["templated_text"]
    assert text.endswith("The weather is")


async def test_parts_and_a_tools_history_are_rendered() -> None:
    call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "wea"}, {"type": "text", "text": "ther"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0", "content": "18 degrees"},
    ]
    async with served(fake=REPLIES) as server:
        tokenized = (await server.post("/chat_tokenize", {"messages": messages})).json()
        answer = await server.post(PATH, {"messages": messages, "temperature": 0})
    assert "weather" in tokenized["templated_text"]
    assert "18 degrees" in tokenized["templated_text"]
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


async def test_variables_that_the_template_does_not_know_are_named_beside_unknown_members() -> None:
    given = {"chat_template_kwargs": {"nonsense": 1, "add_generation_prompt": False}, "unheard": 1}
    many = {"chat_template_kwargs": {f"x{at:02}": 1 for at in range(30)}}
    effort = {"reasoning_effort": "low"}
    async with served() as server:
        both = await server.post(PATH, {**BODY, **given, **effort})
        stream = await server.post(PATH, {**BODY, **given, "stream": True})
        one = await server.post(PATH, {**BODY, **effort})
        tokenized = await server.post("/chat_tokenize", {"messages": MESSAGES, **effort})
        cut = await server.post(PATH, {**BODY, **many, "also": 1, "unheard": 1})
    named = "chat_template_kwargs.nonsense"
    assert both.headers["x-ignored-parameters"] == f"{named},reasoning_effort,unheard"
    assert stream.headers["x-ignored-parameters"] == f"{named},unheard"
    assert cut.headers["x-ignored-parameters"].split(",") == [
        "also",
        *(f"chat_template_kwargs.x{at:02}" for at in range(19)),
        "...",
    ]
    assert one.headers["x-ignored-parameters"] == "reasoning_effort"
    assert tokenized.headers["x-ignored-parameters"] == "reasoning_effort"


async def test_the_clients_variables_and_the_choice_to_go_on_shape_the_prompt() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The weather is"}]
    async with served() as server:

        async def text(**members: Any) -> str:
            response = await server.post("/chat_tokenize", {"messages": messages, **members})
            assert response.status_code == 200, response.text
            rendered: str = response.json()["templated_text"]
            return rendered

        assert (await text()).endswith("The weather is")
        assert (await text(continue_final_message=True)).endswith("The weather is")
        closed = await text(continue_final_message=False)
        open_end = await text(
            continue_final_message=False, chat_template_kwargs={"add_generation_prompt": False}
        )
        wrong = {"messages": messages[:1], "continue_final_message": True}
        refused = await server.post(PATH, wrong)
    assert "The weather is" in open_end
    assert closed.startswith(open_end)
    assert len(closed) > len(open_end)
    assert (refused.status_code, refused.json()["error_type"]) == (422, "validation")
