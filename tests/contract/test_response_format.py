"""The form of a chat's answer, as a client asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft4Validator

from tests.contract.serving import events_of, served
from tests.support import error_of, message_of

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the weather?"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0}
PATH = "/v1/chat/completions"
OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "degrees": {"type": "integer", "minimum": 0}},
    "required": ["unit", "degrees"],
    "additionalProperties": False,
}
ANY = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "weather", "schema": OBJECT, "strict": True}},
        {"type": "json_schema", "value": {"name": "weather", "schema": OBJECT}},
        {"type": "json", "value": OBJECT},
        {"type": "json_object", "value": json.dumps(OBJECT)},
    ],
)
async def test_the_answer_has_the_form_that_is_asked_for(form: dict[str, Any]) -> None:
    async with served() as server:
        body = {"messages": MESSAGES, "temperature": 1, "seed": 3, "response_format": form}
        choice = (await server.post(PATH, body)).json()["choices"][0]
        streamed = events_of(await server.post(PATH, {**body, "stream": True}))[:-1]
    content = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        assert Draft4Validator(OBJECT).is_valid(json.loads(content))
    assert choice["finish_reason"] in ("stop", "length")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in streamed) == content


async def test_a_bare_json_object_is_any_object_and_a_regular_expression_is_matched() -> None:
    async with served(fake={"replies": {"weather": '{"degrees": 18}', "code": "AB12"}}) as server:
        any_object = await server.post(PATH, {**BODY, "response_format": {"type": "json_object"}})
        form = {"type": "regex", "value": "[A-Z]{2}[0-9]{2}"}
        code = {**BODY, "messages": [{"role": "user", "content": "a code"}], "response_format": form}
        matched = await server.post(PATH, code)
    assert json.loads(any_object.json()["choices"][0]["message"]["content"]) == {"degrees": 18}
    assert matched.json()["choices"][0]["message"]["content"] == "AB12"


async def test_a_schema_that_can_not_be_followed_is_refused_by_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "wrong"}}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    async with served() as server:
        for stream in (False, True):
            response = await server.post(PATH, {**BODY, "response_format": form, "stream": stream})
            error = response.json()
            assert (response.status_code, error["error_type"]) == (422, "validation")
            assert "response_format.json_schema.schema" in error["error"]
            assert "/properties/a/type" in error["error"]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        (PATH, {"response_format": {"type": "json", "value": {"name": "x", "schema": OBJECT}}}),
        (
            PATH,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"a": {"type": "integer"}}},
                }
            },
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"a": OBJECT}}}},
        ),
        ("/generate", {"parameters": {"grammar": {"type": "json", "value": {"a": {"type": "integer"}}}}}),
    ],
)
async def test_a_schema_without_a_keyword_is_refused_in_tgis_words(path: str, form: dict[str, Any]) -> None:
    prompts: dict[str, dict[str, Any]] = {PATH: {"messages": MESSAGES}, "/generate": {"inputs": "x"}}
    prompt = prompts.get(path, {"input": "x"})
    async with served() as server:
        response = await server.post(path, {**prompt, **form})
    assert response.status_code == 422
    assert "grammar is not valid: Grammar must have a 'properties' field" in response.text


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (PATH, {"type": "function", "function": {"name": "f", "parameters": {"city": {"type": "string"}}}}),
        ("/v1/responses", {"type": "function", "name": "f", "parameters": {"city": {"type": "string"}}}),
    ],
)
async def test_parameters_without_a_keyword_are_refused(path: str, tool: dict[str, Any]) -> None:
    prompt = {"messages": MESSAGES} if path == PATH else {"input": "x"}
    async with served() as server:
        response = await server.post(path, {**prompt, "tools": [tool]})
    assert response.status_code == 422
    assert "the `parameters` of the function 'f' have no keyword of JSON Schema" in response.text


@pytest.mark.parametrize("path", [PATH, "/invocations"])
@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("stream", [False, True])
async def test_tools_and_a_response_format_exclude_each_other_in_tgis_words(
    path: str, tools: list[Any], stream: bool
) -> None:
    form = {"type": "json_object", "value": {"type": "object", "properties": {"unit": {"type": "string"}}}}
    asked = {**BODY, "tools": tools, "response_format": form, "stream": stream}
    async with served() as server:
        response = await server.post(path, asked)
        nothing_asked = await server.post(path, {**BODY, "tools": [], "response_format": {"type": "text"}})
    assert response.status_code == 422
    assert response.json() == {
        "error": "Tool error: Grammar and tools are mutually exclusive",
        "error_type": "tool_error",
    }
    assert response.headers["x-request-id"]
    assert nothing_asked.status_code == 200


SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
BOTH: dict[str, Any] = {**BODY, "tools": TOOLS, "response_format": FORM, "max_tokens": 60}


@pytest.mark.parametrize("path", [PATH, "/invocations"])
@pytest.mark.parametrize("seed", range(3))
async def test_by_a_setting_an_answer_is_calls_or_a_text_of_its_form(path: str, seed: int) -> None:
    async with served(response_format_with_tools="all") as server:
        response = await server.post(path, {**BOTH, "seed": seed, "temperature": 1})
        document = (await server.http.get("/openapi.json")).json()
    message = response.json()["choices"][0]["message"]
    texts = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    assert response.status_code == 200
    assert all(json.loads(text)["unit"] in ("C", "F") for text in texts or [message["content"]])
    members = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert "x-excludes" not in members["response_format"]


@pytest.mark.parametrize(
    "changes",
    [{"tools": []}, {"tool_choice": "none"}, {"tools": None}, {"response_format": {"type": "text"}}],
)
async def test_by_a_setting_either_goes_without_the_other(changes: dict[str, Any]) -> None:
    async with served(response_format_with_tools="all") as server:
        response = await server.post(PATH, {**BOTH, **changes})
    assert response.status_code == 200
    if "response_format" not in changes:
        assert json.loads(response.json()["choices"][0]["message"]["content"])["unit"] in ("C", "F")


async def test_beside_tools_a_form_is_a_schema() -> None:
    async with served(response_format_with_tools="all") as server:
        response = await server.post(PATH, {**BOTH, "response_format": {"type": "regex", "value": "a+"}})
    assert response.status_code == 422
    assert error_of(response)["error"] == (
        "Tool error: `response_format.value` and `tools` are mutually exclusive: "
        "beside tools, give a JSON Schema"
    )


@pytest.mark.parametrize(
    ("whose", "headers", "status"),
    [
        ("openai", {}, 422),
        ("openai", {"x-stainless-lang": "python"}, 200),
        ("openai", {"user-agent": "ai/6.0.326 ai-sdk/provider-utils/4.0.65"}, 200),
        ("none", {"x-stainless-lang": "python"}, 422),
        ("all", {}, 200),
    ],
)
async def test_it_is_the_sender_that_may_ask_for_both(
    whose: str, headers: dict[str, str], status: int
) -> None:
    async with served(response_format_with_tools=whose) as server:
        response = await server.http.post(PATH, json=BOTH, headers=headers)
    assert response.status_code == status


async def test_what_no_grammar_expresses_is_refused_in_a_strict_schema_and_named_in_others() -> None:
    odd = {**OBJECT, "properties": {**OBJECT["properties"], "tags": {"type": "array", "uniqueItems": True}}}

    def chat(**strict: Any) -> dict[str, Any]:
        return {**BODY, "response_format": {"type": "json_schema", "json_schema": {"schema": odd, **strict}}}

    def response(**strict: Any) -> dict[str, Any]:
        form = {"type": "json_schema", "name": "a", "schema": odd, **strict}
        return {"input": "Hi", "text": {"format": form}}

    with_tools = {**chat(), "tools": [{"type": "function", "function": {"name": "f", "parameters": ANY}}]}
    async with served(response_format_with_tools="all") as server:
        loose = [
            (await server.post(PATH, chat()), "response_format.json_schema.schema.uniqueItems"),
            (await server.post(PATH, with_tools), "response_format.json_schema.schema.uniqueItems"),
            (await server.post("/v1/responses", response()), "text.format.schema.uniqueItems"),
        ]
        strict = [
            (await server.post(PATH, chat(strict=True)), "response_format.json_schema.schema"),
            (await server.post("/v1/responses", response(strict=True)), "text.format.schema"),
        ]
    for answer, named in loose:
        assert (answer.status_code, answer.headers["x-ignored-parameters"]) == (200, named)
    assert loose[2][0].json()["text"]["format"]["strict"] is False
    for answer, named in strict:
        assert answer.status_code == 422
        assert f"`{named}` at /properties/tags/uniqueItems" in message_of(answer.json())
