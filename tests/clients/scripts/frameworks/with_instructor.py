"""Instructor: an object of the asked type, in each of its modes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import instructor
from checking import checks
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field
from subjects import ABOUT_PERSON, ABOUT_WEATHER, MODEL, Person, user

REQUEST: dict[str, Any] = {
    "model": MODEL,
    "messages": user(ABOUT_PERSON),
    "temperature": 0,
    "max_tokens": 120,
}


class GetWeather(BaseModel):
    """Tell the weather in a city."""

    city: str = Field(max_length=24)


class GetTime(BaseModel):
    """Tell the time in a city."""

    city: str = Field(max_length=24)


class Anything(BaseModel):
    """Any object: what the mode JSON is sure to give, since it sends no schema."""

    model_config = ConfigDict(extra="allow")


def client(url: str, mode: Mode) -> Any:
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0), mode=mode)


def extract(url: str, mode: Mode, wanted: Any = Person) -> Any:
    """Return what is extracted at the first try."""
    return client(url, mode).chat.completions.create(**REQUEST, response_model=wanted, max_retries=0)


def extract_part_by_part(url: str, mode: Mode) -> None:
    """Watch an object grow while it is streamed."""
    *_, last = client(url, mode).chat.completions.create_partial(
        **REQUEST, response_model=Person, max_retries=0
    )
    Person.model_validate(last.model_dump())


def mode_tools(url: str) -> None:
    assert isinstance(extract(url, Mode.TOOLS), Person)


def mode_tools_partial(url: str) -> None:
    extract_part_by_part(url, Mode.TOOLS)


def mode_tools_iterable(url: str) -> None:
    people = client(url, Mode.TOOLS).chat.completions.create_iterable(
        **REQUEST, response_model=Person, max_retries=0
    )
    assert all(isinstance(person, Person) for person in people)


def mode_tools_with_completion(url: str) -> None:
    person, completion = client(url, Mode.TOOLS).chat.completions.create_with_completion(
        **REQUEST, response_model=Person, max_retries=0
    )
    assert isinstance(person, Person)
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.completion_tokens > 0


def mode_tools_strict(url: str) -> None:
    assert isinstance(extract(url, Mode.TOOLS_STRICT), Person)


def mode_tools_asynchronous(url: str) -> None:
    async def ask() -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as plain:
            patched = instructor.from_openai(plain, mode=Mode.TOOLS)
            return await patched.chat.completions.create(**REQUEST, response_model=Person, max_retries=0)

    assert isinstance(asyncio.run(ask()), Person)


def mode_parallel_tools(url: str) -> None:
    """Ask what only tools know, since Instructor lets the model choose here whether it calls any."""
    request = {**REQUEST, "messages": user(ABOUT_WEATHER), "response_model": Iterable[GetWeather | GetTime]}
    found = list(client(url, Mode.PARALLEL_TOOLS).chat.completions.create(**request, max_retries=0))
    assert found
    assert all(isinstance(one, GetWeather | GetTime) for one in found)


def mode_json(url: str) -> None:
    assert isinstance(extract(url, Mode.JSON, Anything), Anything)


def mode_json_schema(url: str) -> None:
    assert isinstance(extract(url, Mode.JSON_SCHEMA), Person)


def mode_json_schema_partial(url: str) -> None:
    extract_part_by_part(url, Mode.JSON_SCHEMA)


CHECKS = checks(
    "instructor",
    "openai",
    *(mode_tools, mode_tools_partial, mode_tools_iterable, mode_tools_with_completion, mode_tools_strict),
    *(mode_tools_asynchronous, mode_parallel_tools, mode_json, mode_json_schema, mode_json_schema_partial),
)
