"""Which member an error is about, as OpenAI's clients are told it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
GENERATE, INVOCATIONS, VERTEX = "/generate", "/invocations", "/vertex"
INFER = "/v2/models/any/infer"
HI = {"model": "any", "messages": [{"role": "user", "content": "Hi"}]}
INPUT = {"model": "any", "input": "Hi"}
PROMPT = {"model": "any", "prompt": "Hi"}
FUNCTION = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}
BAD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "it's", "strict": True, "parameters": {"not": {}}},
}


def called(name: str) -> dict[str, Any]:
    return {**BAD, "function": {**BAD["function"], "name": name}}


def function(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "b", "parameters": schema}}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def tensors(*data: list[Any]) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "data": each} for each in data]}


def nested(levels: int) -> dict[str, Any]:
    """Return a schema so deep that it can be read from JSON, and not be written."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def continued(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "Hi", "parameters": parameters}


PLAIN = {"type": "function", "name": "plain"}
FLAT = {"type": "function", **BAD["function"]}
TEXT = {"type": "input_text", "text": "Hi"}


def group(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": "g", "tools": list(tools)}


def custom(expression: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": "regex", "definition": expression}
    return {"type": "custom", "name": "c", "format": form}


SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": nested(300)}}
UNUSED = {"tools": [{"type": "function", "name": "f", "parameters": nested(126)}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**HI, "temperature": "warm"}, "temperature"),  # a wrong type
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (CHAT, {"model": "any"}, "messages"),  # missing
        (CHAT, {**HI, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (CHAT, {**HI, "top_p": 7}, "top_p"),  # out of its limits
        (CHAT, {**HI, "n": 1000}, "n"),
        (CHAT, {**HI, "stop": ["a"] * 10_000}, "stop"),  # too many
        (CHAT, {**HI, "audio": {"voice": "alloy", "format": "wav"}}, "audio"),  # not supported
        (CHAT, {**HI, "tools": [FUNCTION], "tool_choice": {"type": "custom"}}, "tool_choice"),
        (CHAT, {**HI, "response_format": {"type": "regex", "value": "("}}, "response_format.value"),
        (CHAT, {**HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        (CHAT, [], None),
        (CHAT, {**HI, "max_tokens": 0}, "max_tokens"),  # which TGI calls `max_new_tokens`
        (CHAT, {**HI, "max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {**HI, "min_tokens": 500_000}, "min_tokens"),
        (CHAT, {**HI, "tools": [FUNCTION], "tool_choice": "b"}, "tool_choice"),
        (CHAT, {**HI, "tools": [FUNCTION, BAD]}, "tools[1].function.parameters"),
        (CHAT, {**HI, "tools": [FUNCTION, called("n" * 90)]}, "tools[1].function.parameters"),
        (CHAT, {**HI, "tools": [FUNCTION, called("x`y")]}, "tools[1].function.parameters"),
        (CHAT, {**HI, "tools": [FUNCTION, function({"x": 1})]}, "tools[1].function.parameters"),
        (CHAT, {**HI, "response_format": SCHEMA}, "response_format.json_schema.schema"),
        (CHAT, {**HI, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        (CHAT, {**HI, "messages": []}, "messages"),  # which the template can't take
        (COMPLETIONS, {**PROMPT, "max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, {**PROMPT, "prompt": ""}, "prompt"),
        (COMPLETIONS, {**PROMPT, "logprobs": 99}, "logprobs"),
        (COMPLETIONS, {**PROMPT, "prompt": []}, None),  # in TGI's words no member has a name
        (RESPONSES, {**INPUT, "previous_response_id": "a"}, "previous_response_id"),
        (RESPONSES, {**INPUT, "input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (RESPONSES, {**INPUT, "include": ["a"]}, "include[0]"),
        (RESPONSES, {**INPUT, "tools": [FLAT]}, "tools[0].parameters"),
        (RESPONSES, {**INPUT, "tools": [PLAIN, group(PLAIN, FLAT)]}, "tools[1].tools[1].parameters"),
        (RESPONSES, {**INPUT, "tools": [group(custom("("))]}, "tools[0].tools[0].format.definition"),
        (
            RESPONSES,
            {"input": [said(TEXT), {"type": "additional_tools", "tools": [FLAT]}]},
            "input[1].tools[0].parameters",
        ),
        (
            RESPONSES,
            {"input": [said(TEXT, {"type": "input_image", "file_id": "a"})]},
            "input[0].content[1].file_id",
        ),
        (RESPONSES, {**INPUT, "input": []}, "input"),
        (RESPONSES, {**INPUT, "max_output_tokens": 3, "min_tokens": 9}, "min_tokens"),
        (RESPONSES, {**INPUT, **UNUSED, "tool_choice": "none"}, "tools[0].parameters"),  # echoed all the same
        (
            RESPONSES,
            {**INPUT, "text": {"format": SCHEMA["json_schema"] | {"type": "json_schema"}}},
            "text.format.schema",
        ),
        (GENERATE, {"inputs": "Hi", "parameters": {"top_p": 7}}, "parameters.top_p"),
        (GENERATE, {"inputs": ""}, "inputs"),
        (INVOCATIONS, {"inputs": "Hi", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        (INVOCATIONS, {**PROMPT, "prompt": ""}, "prompt"),
        (VERTEX, {"instances": [continued(top_p=7)]}, "instances[0].parameters.top_p"),
        (VERTEX, {"instances": [HI, continued(best_of=99)]}, "instances[1].parameters.best_of"),
        (VERTEX, {"instances": [{"inputs": "Hi"}, {"inputs": ""}]}, "instances[1].inputs"),
        (VERTEX, {"instances": [{"inputs": "Hi"}, {**HI, "max_tokens": 0}]}, "instances[1].max_tokens"),
        (VERTEX, {"instances": [{**HI, "tools": [BAD]}]}, "instances[0].tools[0].function.parameters"),
        (VERTEX, {"instances": [{"inputs": 5}]}, "instances[0].inputs"),
        (INFER, {"inputs": []}, "inputs"),
        (INFER, tensors([""]), "inputs[0].data[0]"),
        (INFER, tensors(["Hi"], [["Hi"], ["Hi", ""]]), "inputs[1].data[1][1]"),
        (INFER, tensors([72, 105], []), "inputs[1].data"),  # the bytes of a text
        (INFER, {**tensors(["Hi"]), "parameters": {"top_p": 7}}, "parameters.top_p"),
        (INFER, {**tensors(["Hi"]), "parameters": {"truncate": 0}}, "parameters.truncate"),
    ],
)
def test_it_is_told(client: httpx.Client, path: str, body: Any, param: str | None) -> None:
    answer = client.post(path, json=body, headers={"x-stainless-lang": "python"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_tgis_clients_are_told_in_words_alone(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={**HI, "top_p": 7})
    assert answer.json().keys() == {"error", "error_type", "request_id"}
