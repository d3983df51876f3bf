"""Anthropic's Messages, as a client sees them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from codegen.property_messages import put_together
from tests.contract.likeness import without_its_own
from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

PATH, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'
TEXT = "It is sunny. Bye"
REPLIES = {"replies": {"the weather?": TEXT, "look it up": "I do.\n" + CALL}}
USER = {"role": "user", "content": "the weather?"}
BODY: dict[str, Any] = {"messages": [USER], "max_tokens": 60, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
TOOLS = [{"name": "get_weather", "input_schema": SCHEMA}]
LOOK = {"role": "user", "content": "Please look it up"}
CALLING: dict[str, Any] = {**BODY, "messages": [LOOK], "tools": TOOLS}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def told(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def prompt_tokens(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


async def test_an_answer_is_the_same_chats_in_anthropics_form() -> None:
    messages = [{"role": "system", "content": "Be short."}, USER]
    async with served(fake=REPLIES, model_id="org/m") as server:
        response = await server.post(PATH, {**BODY, "system": "Be short."})
        chat = told(await server.post(CHAT, {**BODY, "messages": messages}))
        counts = server.metric("tgi_request_count"), server.metric("tgi_request_success")
    answer = told(response)
    assert answer["content"] == [{"type": "text", "text": TEXT}]
    assert answer["id"].startswith("msg_")
    assert (answer["model"], answer["role"], answer["stop_reason"]) == ("org/m", "assistant", "end_turn")
    assert prompt_tokens(answer["usage"]) == chat["usage"]["prompt_tokens"]
    assert answer["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert counts == (2, 2)


@pytest.mark.parametrize("body", [BODY, CALLING, {**BODY, "stop_sequences": ["sunny"]}], ids=str)
async def test_a_stream_tells_the_same_as_the_answer(body: dict[str, Any]) -> None:
    async with served(fake=REPLIES) as server:
        whole = told(await server.post(PATH, body))
        response = await server.post(PATH, {**body, "stream": True})
    events = events_of(response)
    assert without_its_own(put_together(events)) == without_its_own(whole)
    names = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    assert response.headers["content-type"] == "text/event-stream"


async def test_text_and_calls_are_blocks_and_their_results_go_back() -> None:
    async with served(fake=REPLIES) as server:
        answer = told(await server.post(PATH, CALLING))
        text, call = answer["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "18 degrees"}
        said = [LOOK, {"role": "assistant", "content": answer["content"]}]
        more = {"type": "text", "text": "And now?"}
        again = await server.post(
            PATH, {**CALLING, "messages": [*said, {"role": "user", "content": [result, more]}]}
        )
        function = {"name": "get_weather", "arguments": call["input"]}
        messages = [
            LOOK,
            {
                "role": "assistant",
                "content": "I do.",
                "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": "18 degrees"},
            {"role": "user", "content": "And now?"},
        ]
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
        other = told(await server.post(CHAT, {**BODY, "messages": messages, "tools": tools}))
    assert text == {"type": "text", "text": "I do."}
    assert (call["name"], call["input"], answer["stop_reason"]) == (
        *("get_weather", {"location": "Paris"}),
        "tool_use",
    )
    assert re.fullmatch(r"toolu_\w+", call["id"])
    assert "x-ignored-parameters" not in again.headers
    assert prompt_tokens(told(again)["usage"]) == other["usage"]["prompt_tokens"]


@pytest.mark.parametrize("number", ["9" * 25, "9" * 5000, "1e999"], ids=["wide", "long", "beyond"])
async def test_a_calls_arguments_are_told_as_they_were_written(number: str) -> None:
    call = CALL.replace('"Paris"', number)
    schema = {**SCHEMA, "properties": {"location": {"type": "number"}}}
    body = {**CALLING, "tools": [{**TOOLS[0], "input_schema": schema}], "max_tokens": 6000}
    async with served(fake={"replies": {"look it up": call}}, max_total_tokens=8192) as server:
        whole = await server.post(PATH, body)
        streamed = await server.post(PATH, {**body, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    assert re.search(rf'"input":\{{"location": ?{number}\}}', whole.text)
    assert events_of(streamed)[-1] == {"type": "message_stop"}


async def test_what_ends_a_text_is_told() -> None:
    async with served(fake=REPLIES, max_total_tokens=128) as server:
        stopped = told(await server.post(PATH, {**BODY, "stop_sequences": ["Bye", "sunny"], "max_tokens": 9}))
        cut = told(await server.post(PATH, {**BODY, "max_tokens": 2}))
        context = told(await server.post(PATH, {**BODY, "max_tokens": None, "ignore_eos": True}))
        call = told(await server.post(PATH, {**CALLING, "tool_choice": {"type": "any"}, "max_tokens": 3}))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "sunny")
    assert stopped["content"][0]["text"] == "It is "
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)
    assert context["stop_reason"] == "model_context_window_exceeded"
    assert (call["stop_reason"], call["content"][-1].get("input", {})) == ("max_tokens", {})


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [USER]},
        {"messages": [LOOK], "tools": TOOLS, "system": [{"type": "text", "text": "Be short."}]},
        {"messages": [USER], "tools": TOOLS, "tool_choice": {"type": "none"}},
        {"messages": [USER, {"role": "assistant", "content": "It"}]},
        {"messages": [USER], "output_config": {"effort": "low"}, "thinking": {"type": "enabled"}},
    ],
    ids=str,
)
async def test_the_count_is_that_of_an_answers_usage(asked: dict[str, Any]) -> None:
    async with served(fake=REPLIES) as server:
        counted = told(await server.post(COUNT, asked))
        usage = told(await server.post(PATH, {**asked, "max_tokens": 2}))["usage"]
    assert counted == {"input_tokens": prompt_tokens(usage)}


async def test_what_has_no_effect_is_named_and_what_asks_for_nothing_is_not() -> None:
    silent = {
        "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "service_tier": "auto",
    }
    thought = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    loud = {
        "system": [BILLING, {"type": "text", "text": "Be short.", "cache_control": {"ttl": "1h"}}],
        "messages": [USER, thought, USER],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "a"},
    }
    async with served(fake=REPLIES) as server:
        nothing = await server.post(PATH, {**BODY, **silent})
        named = await server.post(PATH, {**BODY, **loud})
    assert "x-ignored-parameters" not in nothing.headers
    assert named.headers["x-ignored-parameters"].split(",") == [
        *("messages[].content[].data", "metadata", "system[].cache_control"),
        *("system[].x-anthropic-billing-header", "thinking", "thinking.budget_tokens"),
    ]


def block(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


@pytest.mark.parametrize(
    ("members", "words", "param"),
    [
        (
            {"max_tokens": 5000, "messages": [{"role": "user", "content": "sun " * 2100}]},
            r"^prompt is too long: \d+ tokens > 2047 maximum\. Input validation error: `messages` tokens",
            "messages",
        ),
        (
            {"max_tokens": 900, "messages": [{"role": "user", "content": "sun " * 1500}]},
            r"^input length and `max_tokens` exceed context limit: \d+ \+ 900 > 2048, decrease input length "
            r"or `max_tokens` and try again\. Input validation error: `messages` tokens",
            "messages",
        ),
        ({"max_tokens": 0}, r"`max_tokens` must be >= 1\. Given: 0", "max_tokens"),
        ({"max_tokens": 8, "min_tokens": 9}, "`min_tokens` must be <= `max_tokens`", "min_tokens"),
        ({"stop_sequences": ["a"] * 9}, "`stop_sequences` supports up to 4", "stop_sequences"),
        ({"stop_sequences": [""]}, "`stop_sequences` must not contain an empty", "stop_sequences"),
        ({"stop": "a"}, "`stop` is not supported: it is called `stop_sequences` here", "stop"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "is 'tool', and is one of user",
            "messages[0].role",
        ),
        (
            block(type="server_tool_use", id="1"),
            "'server_tool_use', and is one of",
            "messages[0].content[0].type",
        ),
        (
            block(type="search_result", source="https://a.example", title="a", content=[]),
            "'search_result', and is one of",
            "messages[0].content[0].type",
        ),
        (block(type="tool_use", id="1", name="f"), "the role 'assistant' only", "messages[0].content[0]"),
        (
            block(type="text", text="a", name="f"),
            "does not go with the type 'text'",
            "messages[0].content[0].name",
        ),
        (
            block(type="document", source={"type": "base64", "media_type": "application/pdf", "data": ""}),
            "only texts are read",
            "messages[0].content[0].source.type",
        ),
        (
            block(type="image", source={"type": "file", "file_id": "a"}),
            r"`messages\[0\]\.content\[0\]\.source\.file_id` is not supported",
            "messages[0].content[0].source.file_id",
        ),
        (
            block(type="image", source={"type": "url", "url": "https://a.example/b.png"}),
            r"`messages\[0\]\.content\[0\]\.type` is 'image'; this model reads text only: send parts of type",
            "messages[0].content[0].type",
        ),
        ({"thinking": {"type": "sometimes"}}, "is 'sometimes', and is one of enabled", "thinking.type"),
        (
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": False}},
            "`chat_template_kwargs.thinking` says otherwise",
            "thinking.type",
        ),
        ({"tool_choice": {"type": "any"}}, "of type 'any' and there are no `tools`", "tool_choice"),
        (
            {"tools": [*TOOLS, {"name": "f", "input_schema": {"type": "string"}}]},
            "the `parameters` of the function 'f' must be the JSON Schema of an object",
            "tools[1].input_schema",
        ),
        ({"tools": TOOLS * 2}, r"`tools\[1\]\.name` is 'get_weather', as is that of", "tools[1].name"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_anthropics_form(
    members: Any, words: str, param: str
) -> None:
    async with served(max_total_tokens=2048) as server:
        response = await server.post(PATH, {**BODY, **members})
    error = error_of(response)
    assert (response.status_code, error["type"]) == (400, "error")
    assert error["error"]["type"] == "invalid_request_error"
    assert re.search(words, error["error"]["message"])
    assert error["error"]["param"] == param


async def test_a_failure_before_the_first_token_is_a_status_and_later_the_last_event() -> None:
    async with served(fake={"fail_prompts": ["weather"]}) as server:
        early = await server.post(PATH, {**BODY, "stream": True})
    async with served(fake={"fail_prompts": ["weather"], "fails_after": 2}) as server:
        late = await server.post(PATH, {**BODY, "stream": True})
        faults = server.metric('parley_http_failures{error_type="generation"}')
    assert (early.status_code, error_of(early)["error"]["type"]) == (500, "api_error")
    *_, last = events_of(late)
    error = error_of(late, last)
    assert (error["type"], error["error"]["type"], error["error_type"]) == (
        "error",
        "api_error",
        "generation",
    )
    assert late.text.split("\n\n")[-2].startswith("event: error\n")
    assert faults == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret"}, 200),
        ({"x-api-key": "wrong", "authorization": "Bearer secret"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
    ids=str,
)
async def test_the_key_is_taken_in_both_ways(headers: dict[str, str], status: int) -> None:
    async with served(fake=REPLIES, api_key="secret") as server:
        response = await server.http.post(PATH, json=BODY, headers=headers)
        chat = await server.http.post(CHAT, json=BODY, headers={"x-api-key": "secret"})
    assert response.status_code == status
    assert status == 200 or error_of(response)["error"]["type"] == "authentication_error"
    assert chat.status_code == 401


async def test_a_full_server_and_a_caller_with_too_much_are_told_apart() -> None:
    async with served(max_concurrent_requests=1) as server:
        with server.service.engine.admit():
            full = await server.post(PATH, BODY)
        faults = server.metric("parley_http_faults")
        told_by_status = server.metric('parley_http_requests{status="529"}')
    async with served(requests_per_minute=1) as server:
        await server.post(PATH, BODY)
        spent = await server.post(PATH, BODY)
    assert (full.status_code, error_of(full)["error"]["type"]) == (529, "overloaded_error")
    assert (spent.status_code, error_of(spent)["error"]["type"]) == (429, "rate_limit_error")
    assert full.headers["retry-after"].isdigit()
    assert spent.headers["retry-after"].isdigit()
    assert (faults, told_by_status) == (0, 1)


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("POST", f"{PATH}/batches")])
async def test_what_is_not_there_is_told_in_anthropics_form(method: str, path: str) -> None:
    async with served() as server:
        response = await server.http.request(method, path)
    assert response.status_code == (405 if path == PATH else 404)
    assert response.json()["type"] == "error"
    assert response.headers["request-id"] == response.json()["request_id"]
