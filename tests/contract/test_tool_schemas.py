"""Schemas of tools as libraries write them: what no grammar can express ends no request that isn't strict."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import served
from tests.support import message_of

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
IGNORED = "x-ignored-parameters"
# What pydantic writes of a set and a path, and an expression like zod's for addresses of mail
ODD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "mail": {"type": "string", "format": "email", "pattern": r"^(?!\.)[a-z.]+@[a-z.]+$"},
        "path": {"type": "string", "format": "path"},
    },
}
# z.record(z.string(), ...), and dict[Literal["a", "b"], int]
RECORD = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}}
LISTED = {
    "type": "object",
    "propertyNames": {"enum": ["a", "b"]},
    "additionalProperties": {"type": "integer"},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def body(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters, **more}
    tools = [{"type": "function", "function": function}]
    return {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "max_tokens": 9}


async def test_what_no_grammar_expresses_is_named_in_a_header() -> None:
    async with served() as server:
        response = await server.post(PATH, body(ODD))
        streamed = await server.post(PATH, {**body(ODD, strict=False), "stream": True})
    assert (response.status_code, streamed.status_code) == (200, 200)
    expected = {f"tools[].function.parameters.{keyword}" for keyword in ("pattern", "uniqueItems")}
    assert set(response.headers[IGNORED].split(",")) == expected
    assert response.headers[IGNORED] == streamed.headers[IGNORED]


async def test_a_strict_tool_is_refused_with_the_place() -> None:
    async with served() as server:
        response = await server.post(PATH, body(ODD, strict=True))
        rendered = await server.post("/chat_tokenize", body(ODD, strict=True))
    for each in (response, rendered):
        assert each.status_code == 422
        assert "`tools['f'].function.parameters` at /properties/tags/uniqueItems" in message_of(each.json())


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", [RECORD, LISTED])
async def test_names_of_properties_as_libraries_write_them_are_taken(
    schema: dict[str, Any], strict: bool
) -> None:
    async with served() as server:
        response = await server.post(
            PATH, body({"type": "object", "properties": {"h": schema}}, strict=strict)
        )
    assert response.status_code == 200
    assert IGNORED not in response.headers


async def test_the_header_names_what_instances_of_vertex_leave_out() -> None:
    async with served() as server:
        response = await server.post("/vertex", {"instances": [body(ODD)]})
    assert "instances[].tools[].function.parameters.uniqueItems" in response.headers[IGNORED].split(",")
