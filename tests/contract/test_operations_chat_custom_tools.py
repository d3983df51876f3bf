"""OpenAI's custom tools in chats, as a client sees them: called with a text, in a form or in none."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
PATCH = '*** Begin Patch\n*** Add File: a.py\n+say = "ä\\n"\n*** End Patch\n'
WEATHER = {"type": "function", "function": {"name": "weather"}}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "patch", "description": "Edits files."}}
CHOICE = {"type": "custom", "custom": {"name": "patch"}}


def call(name: str, **arguments: Any) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


FAKE = {"replies": {"patch it": f"I do.\n{call('patch', input=PATCH)}\n{call('weather')}"}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def body(asked: str, *tools: Any, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked}]
    return {"messages": messages, "tools": list(tools), "temperature": 0, **more}


def formed(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"syntax": syntax, "definition": definition}
    return {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}}


def told(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice


async def test_a_custom_tool_is_called_with_a_text_beside_a_function_whole_and_streamed() -> None:
    asked = body("patch it", CUSTOM, WEATHER)
    async with served(fake=FAKE) as server:
        choice = told(await server.post(PATH, asked))
        *chunks, done = events_of(await server.post(PATH, {**asked, "stream": True}))
    patch, weather = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I do.", "tool_calls")
    assert patch == {"id": "0", "type": "custom", "custom": {"name": "patch", "input": PATCH}}
    assert (weather["id"], weather["type"], weather["function"]["name"]) == ("1", "function", "weather")
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    first, *others = [part for part in parts if part["index"] == 0]
    assert first == {"index": 0, "id": "0", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert all(part["id"] is part["custom"]["name"] is None for part in others)
    assert "".join(part["custom"]["input"] for part in others) == PATCH
    assert len(others) > 5
    assert {part["type"] for part in parts if part["index"] == 1} == {"function"}


async def test_a_custom_call_that_is_cut_has_what_there_was_of_its_input() -> None:
    asked = body("patch it", CUSTOM, tool_choice=CHOICE, max_tokens=35)
    async with served(fake={"replies": {"patch it": call("patch", input=PATCH)}}) as server:
        choice = told(await server.post(PATH, asked))
    (called,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length"
    assert PATCH.startswith(called["custom"]["input"])
    assert called["custom"]["input"]


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", "^[ab]{3}c$", "[ab]{3}c"),
        ("lark", 'start: part+ "."\npart: "x" | "\\"" /[0-9]/', r'(x|"[0-9])+\.'),
    ],
)
async def test_an_input_follows_its_format(syntax: str, definition: str, pattern: str) -> None:
    async with served() as server:
        for seed in range(3):
            tool = formed(syntax, definition)
            asked = body("Hi", tool, tool_choice=CHOICE, temperature=1, seed=seed, max_tokens=200)
            response = await server.post(PATH, asked)
            choice = told(response)
            (called,) = choice["message"]["tool_calls"]
            if choice["finish_reason"] == "tool_calls":
                assert re.fullmatch(pattern, called["custom"]["input"])
            assert "x-ignored-parameters" not in response.headers


async def test_a_format_that_no_input_can_be_held_to_is_named() -> None:
    tool = formed("lark", 'start: "(" start? ")"')
    async with served() as server:
        for path in (PATH, "/chat_tokenize"):
            response = await server.post(path, body("Hi", tool))
            assert response.status_code == 200, response.text
            named = response.headers["x-ignored-parameters"].split(",")
            assert named == ([] if path == PATH else ["temperature"]) + ["tools[].custom.format"]


async def test_a_call_and_its_result_are_shown_as_the_model_wrote_them() -> None:
    called = {"id": "call-7", "type": "custom", "custom": {"name": "patch", "input": PATCH}}
    result = {"role": "tool", "tool_call_id": "call-7", "content": "It is done."}
    asked = body("patch it", CUSTOM)
    asked["messages"] += [{"role": "assistant", "content": None, "tool_calls": [called]}, result]
    async with served() as server:
        shown = (await server.post("/chat_tokenize", asked)).json()["templated_text"]
    assert json.dumps({"input": PATCH}, ensure_ascii=False) in shown
    assert "It is done." in shown


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tools": [{"type": "custom"}]}, "`tools[0]` must be of type 'function' and have a `function`, or"),
        ({"tools": [{**CUSTOM, **CHOICE, "function": {"name": "f"}}]}, "does not go with the type 'custom'"),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "weather"}}},
            "Tool with name weather not found",
        ),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom: missing field `name`"),
    ],
)
async def test_what_is_no_custom_tool_is_refused(changes: dict[str, Any], complaint: str) -> None:
    async with served() as server:
        response = await server.post(PATH, body("Hi", CUSTOM, WEATHER) | changes)
    assert response.status_code == 422
    assert complaint in error_of(response)["error"]
