"""The form of a text in vLLM's words, on both of OpenAI's older routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft4Validator

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "sure": {"type": "boolean"}},
    "required": ["unit", "sure"],
    "additionalProperties": False,
}
ODD = ["a.b|c", "x (y)\n[z]{2}^$", "\\d+", "ä/ü", "*"]  # texts that would mean another thing as expressions
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def body_of(path: str, **members: Any) -> dict[str, Any]:
    asked = {"prompt": "Say"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Say"}]}
    return {**asked, "temperature": 1, "seed": 5, "max_tokens": 200, **members}


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
        {"guided_json": SCHEMA, "response_format": {"type": "text"}},
    ],
)
async def test_a_text_follows_its_schema(path: str, form: dict[str, Any]) -> None:
    if path == COMPLETIONS:
        form = {name: value for name, value in form.items() if name != "response_format"}
    async with served() as server:
        body = body_of(path, **form)
        (choice,) = (await server.post(path, body)).json()["choices"]
        *chunks, _ = events_of(await server.post(path, {**body, "stream": True}))
    assert Draft4Validator(SCHEMA).is_valid(json.loads(text_of(choice)))
    deltas = [chunk["choices"][0] for chunk in chunks]
    streamed = "".join(part["delta"]["content"] if "delta" in part else part["text"] for part in deltas)
    assert (streamed, choice["finish_reason"]) == (text_of(choice), "stop")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"guided_regex": "[ab]c"}, ("ac", "bc")),
        ({"structured_outputs": {"regex": "[ab]c"}}, ("ac", "bc")),
        ({"guided_choice": ["yes", "no", "not"]}, ("yes", "no", "not")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no")),
        *(({"guided_choice": [text]}, (text,)) for text in ODD),
    ],
)
async def test_a_text_is_one_of_those_that_are_possible(
    path: str, form: dict[str, Any], texts: tuple[str, ...]
) -> None:
    async with served() as server:
        answer = await server.post(path, body_of(path, **form, n=3))
    assert answer.status_code == 200, answer.text
    assert {text_of(choice) for choice in answer.json()["choices"]} <= set(texts)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            {"guided_json": SCHEMA, "guided_regex": "a"},
            "`guided_json` and `guided_regex` both give the form of the text: leave one of them out",
        ),
        (
            {"guided_choice": ["a"], "structured_outputs": {"regex": "a"}},
            "`guided_choice` and `structured_outputs.regex` both give the form of the text",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "choice": ["a"]}},
            "`structured_outputs.json` and `structured_outputs.choice` both give the form of the text",
        ),
        ({"guided_choice": []}, "`guided_choice` is empty: name the texts of which the answer is one"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "`structured_outputs.choice[1]` is empty"),
        ({"guided_json": "{"}, "`guided_json` holds no JSON"),
        ({"guided_json": 5}, "`guided_json` must be a JSON Schema"),
        ({"structured_outputs": {"json": {"type": "odd"}}}, "`structured_outputs.json` at /type"),
        ({"guided_regex": "a("}, "`guided_regex`"),
        ({"guided_grammar": "root ::= a"}, "grammars are JSON Schemas and regular expressions"),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "grammars are JSON Schemas and regular expr"),
        ({"structured_outputs": {"json_object": True}}, 'give `{"type": "object"}` as `json`'),
        ({"structured_outputs": {"structural_tag": "{}"}}, "a form is that of the whole text"),
    ],
)
async def test_what_can_not_be_is_refused_by_its_name(path: str, form: dict[str, Any], message: str) -> None:
    async with served() as server:
        for more in ({}, {"stream": True}):
            answer = await server.post(path, body_of(path, **form, **more))
            assert (answer.status_code, message in error_of(answer)["error"]) == (422, True), answer.text


async def test_beside_a_response_format_it_is_refused_and_tools_are_as_beside_that() -> None:
    form = {"guided_json": SCHEMA, "response_format": {"type": "json_object"}}
    tools = {"guided_json": SCHEMA, "tools": [TOOL]}
    async with served() as server:
        both = await server.post(CHAT, body_of(CHAT, **form))
        tgis = await server.post(CHAT, body_of(CHAT, **tools))
        headers = {"x-stainless-lang": "python"}
        openais = await server.http.post(CHAT, json=body_of(CHAT, **tools), headers=headers)
    assert both.status_code == 422
    assert "`guided_json` and `response_format` both give" in error_of(both)["error"]
    assert (tgis.status_code, tgis.json()["error_type"]) == (422, "tool_error")
    assert openais.status_code == 200


async def test_without_a_form_in_it_an_object_for_one_asks_for_nothing() -> None:
    async with served(disable_grammar_support=True) as server:
        for form in ({}, {"json": None, "json_object": False}):
            answer = await server.post(COMPLETIONS, body_of(COMPLETIONS, structured_outputs=form))
            assert answer.status_code == 200
        refused = await server.post(COMPLETIONS, body_of(COMPLETIONS, guided_regex="a"))
    assert refused.status_code == 422
    assert "leave out `guided_regex`" in error_of(refused)["error"]


async def test_a_prompt_that_is_scored_needs_no_form() -> None:
    async with served() as server:
        body = {"prompt": "Say", "echo": True, "max_tokens": 0, "logprobs": 0, "guided_choice": ["x"]}
        answer = await server.post(COMPLETIONS, body)
    assert answer.json()["choices"][0]["text"] == "Say"


async def test_every_prompt_and_candidate_of_a_completion_has_the_form() -> None:
    async with served() as server:
        body = {**body_of(COMPLETIONS, guided_choice=["yes", "no"]), "prompt": ["One", "Two"], "n": 2}
        choices = (await server.post(COMPLETIONS, body)).json()["choices"]
    assert len(choices) == 4
    assert {choice["text"] for choice in choices} <= {"yes", "no"}


async def test_an_empty_form_asks_for_none_also_beside_tools() -> None:
    async with served() as server:
        response = await server.post(CHAT, body_of(CHAT, tools=[TOOL], structured_outputs={}))
    assert response.status_code == 200, response.text
