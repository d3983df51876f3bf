"""OpenAI's Responses, as a client sees them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.contract.likeness import without_its_own
from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'
TEXT = "It is sunny. Bye"
REPLIES = {"replies": {"the weather?": TEXT, "look it up": "I do.\n" + CALL, "fail": "none"}}
BODY: dict[str, Any] = {"input": "the weather?", "temperature": 0}
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
CALLING: dict[str, Any] = {"input": "Please look it up", "tools": TOOLS, "temperature": 0}
CALL_ITEM = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def text_of(answer: Any) -> str:
    (item,) = answer["output"]
    (part,) = item["content"]
    return str(part["text"])


def told(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_is_the_same_chats_in_openais_newer_form() -> None:
    asked = {**BODY, "instructions": "Be short."}
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the weather?"}]
    async with served(fake=REPLIES, model_id="org/m") as server:
        response = await server.post(PATH, asked)
        chat = (await server.post(CHAT, {"messages": messages, "temperature": 0})).json()
        counted = server.metric("tgi_request_count")
        succeeded = server.metric("tgi_request_success")
    answer = told(response)
    assert text_of(answer) == chat["choices"][0]["message"]["content"] == TEXT
    assert answer["id"].startswith("resp_")
    assert (answer["model"], answer["status"], answer["store"]) == ("org/m", "completed", False)
    usage, of_chat = answer["usage"], chat["usage"]
    assert usage["input_tokens"] == of_chat["prompt_tokens"]
    assert usage["output_tokens"] == of_chat["completion_tokens"]
    assert usage["total_tokens"] == of_chat["total_tokens"]
    assert response.headers["x-generated-tokens"] == str(usage["output_tokens"])
    assert (counted, succeeded) == (2, 2)


async def test_a_stream_tells_the_same_as_the_answer() -> None:
    body = {**BODY, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with served(fake=REPLIES) as server:
        whole = told(await server.post(PATH, body))
        response = await server.post(PATH, {**body, "stream": True})
    events = events_of(response)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert without_its_own(events[-1]["response"]) == without_its_own(whole)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == TEXT
    entries = [entry for event in deltas for entry in event["logprobs"]]
    assert entries == whole["output"][0]["content"][0]["logprobs"]
    assert len(entries) == whole["usage"]["output_tokens"]
    assert response.headers["content-type"] == "text/event-stream"
    names = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]


async def test_text_and_calls_are_items_and_their_results_go_back() -> None:
    async with served(fake=REPLIES) as server:
        answer = told(await server.post(PATH, CALLING))
        message, call = answer["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"}
        items = [{"role": "user", "content": CALLING["input"]}, message, call, result]
        again = await server.post(PATH, {**CALLING, "input": items})
        chat = {
            "messages": [
                {"role": "user", "content": CALLING["input"]},
                {
                    "role": "assistant",
                    "content": "I do.",
                    "tool_calls": [
                        {
                            "id": call["call_id"],
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": call["arguments"]},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "0", "name": "get_weather", "content": "18 degrees"},
            ],
            "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
            "temperature": 0,
        }
        other = await server.post(CHAT, chat)
    assert message["content"][0]["text"] == "I do."
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    assert call["arguments"] == '{"location":"Paris"}'
    assert "x-ignored-parameters" not in again.headers
    assert told(again)["usage"]["input_tokens"] == other.json()["usage"]["prompt_tokens"]


async def test_functions_that_are_not_allowed_are_not_shown() -> None:
    tools = [*TOOLS, {"type": "function", "name": "get_time"}]
    named = {"type": "function", "name": "get_weather"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    async with served() as server:
        one = told(await server.post(PATH, {**CALLING, "tools": TOOLS, "tool_choice": "required"}))
        other = told(await server.post(PATH, {**CALLING, "tools": tools, "tool_choice": allowed}))
    assert other["usage"]["input_tokens"] == one["usage"]["input_tokens"]
    assert other["tool_choice"] == allowed
    assert [tool["name"] for tool in other["tools"]] == ["get_weather", "get_time"]
    assert {item["name"] for item in other["output"]} == {"get_weather"}


async def test_a_text_follows_its_form_beside_tools_as_well() -> None:
    form = {
        "format": {
            "type": "json_schema",
            "name": "a",
            "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
        }
    }
    async with served() as server:
        alone = told(await server.post(PATH, {**BODY, "text": form}))
        beside = told(await server.post(PATH, {**BODY, "text": form, "tools": TOOLS}))
    assert json.loads(text_of(alone)).keys() == {"a"}
    for item in beside["output"]:
        arguments = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert json.loads(arguments).keys() in ({"a"}, {"location"})


async def test_what_is_cut_is_incomplete() -> None:
    async with served(fake=REPLIES) as server:
        body = {**BODY, "max_output_tokens": 2}
        whole = told(await server.post(PATH, body))
        events = events_of(await server.post(PATH, {**body, "stream": True}))
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"


async def test_the_last_message_of_the_assistant_is_continued_only_if_asked_for() -> None:
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
    asked, messages = {"input": items, "temperature": 0}, {"messages": items, "temperature": 0}
    async with served() as server:
        new = told(await server.post(PATH, asked))["usage"]["input_tokens"]
        continued = told(await server.post(PATH, {**asked, "continue_final_message": True}))
        chat_continued = told(await server.post(CHAT, messages))["usage"]["prompt_tokens"]
        chat_new = told(await server.post(CHAT, {**messages, "continue_final_message": False}))
    assert new == chat_new["usage"]["prompt_tokens"]
    assert continued["usage"]["input_tokens"] == chat_continued != new


async def test_what_has_no_effect_is_named() -> None:
    body = {
        **BODY,
        "input": [
            {"role": "user", "content": "the weather?"},
            {"type": "reasoning", "summary": []},
        ],
        "store": True,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "never_heard_of": 1,
    }
    async with served(fake=REPLIES) as server:
        response = await server.post(PATH, body)
    answer = told(response)
    assert response.headers["x-ignored-parameters"].split(",") == [
        *("include.reasoning.encrypted_content", "input[].reasoning", "never_heard_of"),
        *("reasoning.effort", "reasoning.summary", "store", "truncation"),
    ]
    assert (answer["store"], answer["truncation"]) == (False, "disabled")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"previous_response_id": "resp_1"},
            "`previous_response_id` is not supported: answers are not stored",
        ),
        ({"conversation": "conv_1"}, "`conversation` is not supported: conversations are not stored"),
        ({"background": True}, "`background` is not supported: answers are not stored"),
        ({"prompt": {"id": "pmpt_1"}}, "`prompt` is not supported: prompts are not stored"),
        ({"messages": []}, "`messages` is not supported: the items of a conversation stand in `input`"),
        ({"max_tokens": 5}, "`max_tokens` is not supported: it is called `max_output_tokens` here"),
        (
            {"tool_choice": {"type": "web_search"}},
            "`tool_choice.type` is 'web_search', and this server runs no tools",
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "items are not stored: send the item itself",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_with_what_to_do(members: Any, words: str) -> None:
    async with served() as server:
        response = await server.post(PATH, {**BODY, **members})
        failures = server.metric('tgi_request_failure{err="validation"}')
    assert response.status_code == 422
    assert words in error_of(response)["error"]["message"]
    assert failures <= 1


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"input": "sun " * 1200, "max_output_tokens": 1000},
            r"`input` tokens \+ `max_output_tokens` must be <= \d+\. "
            r"Given: \d+ `input` tokens and 1000 `max_output_tokens`\. That exceeds the context window",
        ),
        (
            {"min_tokens": 9, "max_output_tokens": 8},
            r"`min_tokens` must be <= `max_output_tokens`\. Given: 9 and 8",
        ),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 5, "max_output_tokens": 7},
            r"`top_logprobs` for all tokens must be <= 9 .* Given: 35, .* a smaller `max_output_tokens`$",
        ),
        (
            {"input": [{"role": "user", "content": "a"}, CALL_ITEM], "continue_final_message": True},
            "can't go on with a `function_call`: leave it out$",
        ),
        ({"include": ["`inputs`"]}, r"`include\[0\]` is '`inputs`'"),
    ],
)
async def test_what_all_routes_refuse_names_members_as_they_are_called_here(members: Any, words: str) -> None:
    async with served(max_sequence_logprobs=9, max_total_tokens=2048) as server:
        response = await server.post(PATH, {**BODY, **members})
    told = error_of(response)["error"]
    assert response.status_code == (400 if told["code"] == "context_length_exceeded" else 422)
    assert re.search(words, told["message"])


async def test_a_text_with_alternatives_and_without_a_length_is_cut_where_they_end() -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "ignore_eos": True}
    async with served(max_sequence_logprobs=9, max_total_tokens=2048) as server:
        answer = (await server.post(PATH, {**BODY, **asked})).json()
    assert (answer["status"], answer["usage"]["output_tokens"]) == ("incomplete", 4)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_wrong_schema_of_a_function_is_named_where_it_stands() -> None:
    wrong = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"not": {"type": "null"}}}}}
    async with served() as server:
        taken = await server.post(PATH, {**BODY, "tools": [wrong]})
        response = await server.post(PATH, {**BODY, "tools": [{**wrong, "strict": True}]})
    assert taken.status_code == 200
    assert taken.headers["x-ignored-parameters"].split(",").count("tools[].parameters.not") == 1
    assert response.status_code == 422
    assert "`tools['f'].parameters` at /properties/a/not" in error_of(response)["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_nothing_stored_to_be_asked_for(method: str) -> None:
    async with served() as server:
        response = await server.http.request(method, f"{PATH}/resp_1")
    assert (response.status_code, response.json()["error_type"]) == (404, "not_found")


async def test_a_failure_before_the_first_token_is_a_status_and_later_the_last_event() -> None:
    fake = {"fail_prompts": ["please fail"]}
    body = {"input": "please fail", "stream": True}
    async with served(fake=fake) as server:
        early = await server.post(PATH, body)
    async with served(fake={**fake, "fails_after": 2}) as server:
        late = await server.post(PATH, body)
        failures = server.metric('tgi_request_failure{err="generation"}')
    assert (early.status_code, error_of(early)["error_type"]) == (500, "generation")
    *told_before, last = events_of(late)
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(told_before))
    error = error_of(late, last["response"]["error"])
    assert (error["code"], error["type"]) == ("server_error", "generation")
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert failures == 1
