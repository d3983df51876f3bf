"""OpenAI's client: its stream helper, which puts chunks together, and its parsing of schemas."""

from __future__ import annotations

from typing import Any

import openai
from checking import checks
from openai import OpenAI
from subjects import ABOUT_PERSON, ABOUT_WEATHER, GREETING, MODEL, TOOLS, Person, check_call, user


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)


def streamed(url: str, **request: Any) -> Any:
    """Return the completion that the helper puts together of chunks; it raises if that was cut."""
    request = {"model": MODEL, "temperature": 0, "max_tokens": 80, **request}
    with client(url).chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


def text_is_put_together(url: str) -> None:
    request = {"model": MODEL, "temperature": 0, "max_tokens": 80, "messages": user(GREETING)}
    whole = client(url).chat.completions.create(**request)
    choice = streamed(url, **request, stream_options={"include_usage": True})
    assert choice.choices[0].message.content == whole.choices[0].message.content != ""
    assert choice.choices[0].finish_reason == whole.choices[0].finish_reason
    assert choice.usage == whole.usage


def role_is_put_together(url: str) -> None:
    message = streamed(url, messages=user(GREETING)).choices[0].message
    assert message.role == "assistant", message.role


def calls_are_put_together(url: str) -> None:
    choice = streamed(url, messages=user(ABOUT_WEATHER), tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    ids = [call.id for call in choice.message.tool_calls]
    assert all(id.startswith("call_") for id in ids)
    assert len(set(ids)) == len(ids)
    for call in choice.message.tool_calls:
        assert call.type == "function"
        check_call(call.function.name, call.function.arguments)


def schema_is_parsed(url: str) -> None:
    answer = client(url).chat.completions.parse(
        model=MODEL, messages=user(ABOUT_PERSON), response_format=Person, max_tokens=80, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def schema_is_parsed_while_streamed(url: str) -> None:
    message = streamed(url, messages=user(ABOUT_PERSON), response_format=Person).choices[0].message
    assert isinstance(message.parsed, Person)


def tool_is_parsed(url: str) -> None:
    answer = client(url).chat.completions.parse(
        model=MODEL,
        messages=user(ABOUT_PERSON),
        tools=[openai.pydantic_function_tool(Person)],
        tool_choice="required",
        parallel_tool_calls=False,  # another one could be cut off, and so could what is drawn
        temperature=0,
        max_tokens=80,
    )
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Person)


def choices_are_put_together(url: str) -> None:
    choices = streamed(url, messages=user(GREETING), n=3, temperature=1, seed=7).choices
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert all(choice.message.content and choice.finish_reason for choice in choices)


CHECKS = checks(
    "openai",
    "openai",
    *(text_is_put_together, role_is_put_together, calls_are_put_together, choices_are_put_together),
    *(schema_is_parsed, schema_is_parsed_while_streamed, tool_is_parsed),
)
