"""Anthropic's Messages, as its own client and LiteLLM speak them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import litellm
from anthropic.types import ToolUseBlock
from checking import checks, raised
from subjects import (
    ABOUT_PERSON,
    ABOUT_WEATHER,
    FUNCTIONS,
    GREETING,
    MODEL,
    PARAMETERS,
    Person,
    check_call,
    user,
)

TOOLS: list[Any] = [
    {"name": name, "description": function.__doc__, "input_schema": PARAMETERS[name]}
    for name, function in FUNCTIONS.items()
]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 80, "extra_body": {"temperature": 0}}
WEATHER: dict[str, Any] = {
    **ASKED,
    "messages": user(ABOUT_WEATHER),
    "tools": TOOLS,
    "tool_choice": {"type": "any"},
}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)


def text(url: str) -> None:
    answer = client(url).messages.create(
        **ASKED, system="You are a helpful assistant.", messages=user(GREETING)
    )
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert answer.content[0].text != ""
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens > 0
    assert answer._request_id


def text_streamed(url: str) -> None:
    whole = client(url).messages.create(**ASKED, messages=user(GREETING))
    with client(url).messages.stream(**ASKED, messages=user(GREETING)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text != ""
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def raw_events(url: str) -> None:
    stream = client(url).messages.create(**ASKED, messages=user(GREETING), stream=True)
    kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def tools_round_trip(url: str) -> None:
    called = client(url).messages.create(**WEATHER)
    calls = [block for block in called.content if isinstance(block, ToolUseBlock)]
    assert calls
    assert called.stop_reason == "tool_use"
    for call in calls:
        check_call(call.name, call.input)
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": FUNCTIONS[call.name](**call.input)}
        for call in calls
    ]
    messages = [*WEATHER["messages"], called.to_param(), {"role": "user", "content": results}]
    answer = client(url).messages.with_raw_response.create(**ASKED, messages=messages, tools=TOOLS)
    assert answer.headers.get("x-ignored-parameters") is None
    assert answer.parse().content


def tools_streamed(url: str) -> None:
    one = {**WEATHER, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    (whole,) = client(url).messages.create(**one).content
    with client(url).messages.stream(**one) as stream:
        pieces = "".join(event.partial_json for event in stream if event.type == "input_json")
        (final,) = stream.get_final_message().content
    assert json.loads(pieces) == final.input == whole.input


def stopped(url: str) -> None:
    whole = client(url).messages.create(**ASKED, messages=user(GREETING)).content[0].text
    word = whole.split()[-1]
    answer = client(url).messages.create(**ASKED, messages=user(GREETING), stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == whole[: whole.index(word)]


def structured(url: str) -> None:
    form = {"type": "json_schema", "schema": Person.model_json_schema()}
    asked = {**ASKED, "messages": user(ABOUT_PERSON), "output_config": {"format": form}}
    assert Person.model_validate_json(client(url).messages.create(**asked).content[0].text)


def begun(url: str) -> None:
    messages = [*user(GREETING), {"role": "assistant", "content": "I am"}]
    assert client(url).messages.create(**ASKED, messages=messages).content[0].text


def counted(url: str) -> None:
    asked = {"model": MODEL, "messages": user(ABOUT_WEATHER), "tools": TOOLS}
    tokens = client(url).messages.count_tokens(**asked).input_tokens
    usage = client(url).messages.create(**asked, max_tokens=1).usage
    assert tokens == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def refused(url: str) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}

    def ask() -> None:
        client(url).messages.create(**ASKED, messages=user(GREETING), tools=[search])

    error = raised(anthropic.BadRequestError, ask)
    assert (error.status_code, error.type) == (400, "invalid_request_error")
    assert "web_search_20250305" in error.api_message
    assert error.request_id
    assert error.body["request_id"] == error.request_id


def listed(url: str) -> None:
    (model,) = client(url).models.list()
    assert model.type == "model"
    assert model.display_name == model.id
    assert model.created_at.year == 1970


def through_litellm(url: str, **asked: Any) -> Any:
    return litellm.completion(
        model=f"anthropic/{MODEL}", api_base=url, api_key="-", max_tokens=80, temperature=0, **asked
    )


def litellms_text(url: str) -> None:
    answer = through_litellm(url, messages=user(GREETING))
    assert answer.choices[0].message.content != ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


def litellms_stream(url: str) -> None:
    whole = through_litellm(url, messages=user(GREETING)).choices[0].message.content
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in through_litellm(url, messages=user(GREETING), stream=True)
    ]
    assert "".join(pieces) == whole


def litellms_tools(url: str) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in PARAMETERS.items()
    ]
    answer = through_litellm(url, messages=user(ABOUT_WEATHER), tools=tools, tool_choice="required")
    call = answer.choices[0].message.tool_calls[0].function
    check_call(call.name, call.arguments)


CHECKS = (
    *checks(
        "anthropic",
        "anthropic",
        *(text, text_streamed, raw_events, tools_round_trip, tools_streamed, stopped, structured, begun),
        *(counted, refused, listed),
    ),
    *checks("litellm", "anthropic", litellms_text, litellms_stream, litellms_tools),
)
