"""Stop sequences of answers that may call tools: they end what a client sees as text, and never a call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import Served, events_of, served
from tests.contract.tool_conversations import Answer, plain_answer, streamed_answer

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "parameters": PARAMETERS}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = (("get_weather", '{"city":"Paris"}'),)
FAKE = {
    "replies": {
        "first": f"Let me see. One moment.\n{CALL}",
        "chat": 'Hello\nthere, {"name"}.',
        "weather": CALL,
    }
}
HIDDEN = ["\n", "name", "arguments", "{", '"', "Par", "<tool_call>", "}}", "call>\n"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def asking(content: str, stop: Any, **members: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": content}],
        "tools": [{"type": "function", "function": WEATHER}],
        "temperature": 0,
        "max_tokens": 200,
        "stop": stop,
        **members,
    }


async def answers(server: Served, body: dict[str, Any], path: str = PATH) -> list[Answer]:
    """Return the answers to a body, which are the same streamed, as are their counts of tokens."""
    whole = (await server.post(path, body)).json()
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events_of(await server.post(path, {**body, **streaming}))
    assert done == "[DONE]"
    parts = [part for chunk in chunks for part in chunk["choices"]]
    told = [plain_answer(choice) for choice in whole["choices"]]
    indexes = range(len(told))
    assert told == [streamed_answer([part for part in parts if part["index"] == at]) for at in indexes]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    return told


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
@pytest.mark.parametrize("stop", HIDDEN)
async def test_a_call_is_whole_whatever_stop_sequence_its_notation_has(choice: Any, stop: str) -> None:
    async with served(fake=FAKE) as server:
        (answer,) = await answers(server, asking("the weather?", [stop], tool_choice=choice))
    assert (answer.content, answer.calls, answer.reasons) == ("", CALLED, ("tool_calls",))


@pytest.mark.parametrize(
    ("content", "stop", "shown", "calls"),
    [
        ("say first", ["me"], "Let ", ()),
        ("say first", [" One", "moment"], "Let me see.", ()),
        ("say first", ["\n", "Paris", ".\n<tool"], "Let me see. One moment.", CALLED),
        ("just chat", ["\n"], "Hello", ()),
        ("just chat", ["{"], "Hello\nthere, ", ()),
        ("just chat", ["Paris"], 'Hello\nthere, {"name"}.', ()),
    ],
)
async def test_the_text_before_calls_ends_at_a_stop_sequence(
    content: str, stop: list[str], shown: str, calls: tuple[tuple[str, str], ...]
) -> None:
    async with served(fake=FAKE) as server:
        (answer,) = await answers(server, asking(content, stop))
    assert (answer.content, answer.calls) == (shown, calls)
    assert answer.reasons == ("tool_calls" if calls else "stop",)


async def test_each_of_several_choices_has_its_call() -> None:
    body = asking("the weather?", ["\n", '"'], n=2, temperature=1, seed=5, tool_choice=NAMED)
    async with served(fake=FAKE) as server:
        both = await answers(server, body)
    assert [(answer.calls, answer.reasons) for answer in both] == [(CALLED, ("tool_calls",))] * 2


async def test_a_call_that_the_limit_cuts_says_so_beside_stop_sequences_too() -> None:
    async with served(fake=FAKE) as server:
        (answer,) = await answers(server, asking("the weather?", ["\n"], max_tokens=21))
    ((name, arguments),) = answer.calls
    assert (name, answer.reasons) == ("get_weather", ("length",))
    assert CALLED[0][1].startswith(arguments)


async def test_it_is_so_on_the_clouds_routes() -> None:
    body = asking("the weather?", ["\n", "{"], tool_choice="required")
    async with served(fake=FAKE) as server:
        (invoked,) = await answers(server, body, "/invocations")
        vertex = (await server.post("/vertex", {"instances": [body, asking("say first", "me")]})).json()
    assert (invoked.calls, invoked.reasons) == (CALLED, ("tool_calls",))
    assert vertex == {"predictions": ['{"function":{"_name":"get_weather","city":"Paris"}}', "Let "]}


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_it_is_so_in_responses(choice: str) -> None:
    body = {
        "input": "the weather?",
        "tools": [{"type": "function", **WEATHER}],
        "tool_choice": choice,
        "temperature": 0,
        "stop": ["\n", '"'],
    }
    async with served(fake=FAKE) as server:
        told = (await server.post("/v1/responses", body)).json()
        last = events_of(await server.post("/v1/responses", {**body, "stream": True}))[-1]["response"]
    for response in (told, last):
        assert response["status"] == "completed"
        assert [(item["type"], item["arguments"]) for item in response["output"]] == [
            ("function_call", CALLED[0][1])
        ]
