"""Outlines: types as `response_format` on OpenAI's API, and as grammars on TGI's."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import outlines
from checking import checks
from huggingface_hub import AsyncInferenceClient, InferenceClient
from openai import AsyncOpenAI, OpenAI
from outlines.inputs import Chat
from outlines.types import JsonSchema, Regex
from subjects import ABOUT_PERSON, GREETING, MODEL, Person, check_person, user

CHAT: dict[str, Any] = {"max_tokens": 80, "temperature": 0}
# a TGI answers with the prompt before the text unless it is told not to
TEXT: dict[str, Any] = {"max_new_tokens": 80, "return_full_text": False, "seed": 7}


def chat_model(url: str) -> Any:
    return outlines.from_openai(OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0), MODEL)


def text_model(url: str) -> Any:
    return outlines.from_tgi(InferenceClient(url))


def chat(url: str) -> None:
    assert chat_model(url)(Chat(user(GREETING)), **CHAT) != ""


def chat_streamed(url: str) -> None:
    model = chat_model(url)
    assert "".join(model.stream(GREETING, **CHAT)) == model(GREETING, **CHAT)


def chat_asynchronous(url: str) -> None:
    async def ask() -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as plain:
            return await outlines.from_openai(plain, MODEL)(ABOUT_PERSON, Person, **CHAT)

    check_person(asyncio.run(ask()))


def chat_choices(url: str) -> None:
    assert len(chat_model(url)(GREETING, n=2, max_tokens=8)) == 2


def chat_type(url: str) -> None:
    check_person(chat_model(url)(ABOUT_PERSON, Person, **CHAT))


def chat_type_streamed(url: str) -> None:
    check_person("".join(chat_model(url).stream(ABOUT_PERSON, Person, **CHAT)))


def chat_schema(url: str) -> None:
    check_person(chat_model(url)(ABOUT_PERSON, JsonSchema(json.dumps(Person.model_json_schema())), **CHAT))


def chat_any_object(url: str) -> None:
    assert isinstance(json.loads(chat_model(url)(ABOUT_PERSON, dict, **CHAT)), dict)


def text(url: str) -> None:
    assert text_model(url)("Once upon a time", **TEXT) != ""


def text_streamed(url: str) -> None:
    model, settings = text_model(url), {**TEXT, "max_new_tokens": 16}
    assert "".join(model.stream("Once upon a time", **settings)) == model("Once upon a time", **settings)


def text_type(url: str) -> None:
    check_person(text_model(url)(ABOUT_PERSON, Person, **TEXT))


def text_type_streamed(url: str) -> None:
    """Leave out the last part: a TGI streams the end token's text too, and Outlines passes it on."""
    *parts, _ = text_model(url).stream(ABOUT_PERSON, Person, **TEXT)
    check_person("".join(parts))


def text_type_asynchronous(url: str) -> None:
    async def ask() -> Any:
        return await outlines.from_tgi(AsyncInferenceClient(url))(ABOUT_PERSON, Person, **TEXT)

    check_person(asyncio.run(ask()))


def text_regex(url: str) -> None:
    assert re.fullmatch(r"\d{2}-\d{2}", text_model(url)("A code:", Regex(r"\d{2}-\d{2}"), **TEXT))


def text_choice(url: str) -> None:
    options = Literal["sunny", "rainy - and cold", "c++"]
    assert text_model(url)("The weather is", options, **TEXT) in options.__args__


def text_number(url: str) -> None:
    number = text_model(url)("How many? ", Regex(r"[+-]?(0|[1-9][0-9]{0,5})"), **TEXT)
    assert -999_999 <= int(number) <= 999_999


CHECKS = (
    *checks(
        "outlines",
        "openai",
        *(chat, chat_streamed, chat_asynchronous, chat_choices),
        *(chat_type, chat_type_streamed, chat_schema, chat_any_object),
    ),
    *checks(
        "outlines",
        "tgi",
        *(text, text_streamed, text_type, text_type_streamed, text_type_asynchronous),
        *(text_regex, text_choice, text_number),
    ),
)
