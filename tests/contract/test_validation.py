"""What a refused body is told, and what an accepted one is told about members without effect."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support import error_of, live_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
SHAPE = "Failed to deserialize the JSON body into the target type: "


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/generate", {}, "body: missing field `inputs`, got an empty object"),
        ("/generate", [], "body: expected an object, got an array of 0"),
        ("/generate", {"inputs": 5}, "inputs: expected a string, got 5"),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"top_k": "5"}},
            'parameters.top_k: expected an integer or null, got "5"',
        ),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"seed": -1}},
            "parameters.seed: expected at least 0, got -1",
        ),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"stop": [1]}},
            "parameters.stop[0]: expected a string, got 1",
        ),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"temperature": "x" * 5000}},
            f'parameters.temperature: expected a number or null, got "{"x" * 100}"…',
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text: expected a string or null, got 5",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: expected a string, an array or null, got 5",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "stream_options": {"include_usage": "yes"}},
            'stream_options.include_usage: expected a boolean or null, got "yes"',
        ),
        ("/invocations", {"messages": 5}, "messages: expected an array, got 5"),
        (
            "/invocations",
            {"inputs": "Hi", "parameters": {"top_k": []}},
            "parameters.top_k: expected an integer or null, got an array of 0",
        ),
        (
            "/invocations",
            {"prompt": {"a": 1}},
            "prompt: expected a string or an array, got an object with `a`",
        ),
        (
            "/invocations",
            {"input": "Hi"},
            "body: missing field `inputs`, `messages` or `prompt`, got an object with `input`",
        ),
        ("/invocations", {"prompt": [1, 2, "Hi"]}, 'prompt[2]: expected an integer, got "Hi"'),
        ("/vertex", {}, "body: missing field `instances`, got an empty object"),
        (
            "/vertex",
            {"instances": [{"inputs": "Hi"}, {"text": "Hi"}]},
            "instances[1]: missing field `inputs` or `messages`, got an object with `text`",
        ),
        (
            "/vertex",
            {"instances": [{"messages": [{"content": "Hi"}]}]},
            "instances[0].messages[0]: missing field `role`, got an object with `content`",
        ),
        ("/v2/models/m/infer", {"inputs": [{}]}, "inputs[0]: missing field `data`, got an empty object"),
        (
            "/v2/models/m/infer",
            {"inputs": [{"data": [72, 256]}]},
            "inputs[0].data[1]: expected at most 255, got 256",
        ),
    ],
)
def test_the_reason_names_place_expectation_and_value(
    client: httpx.Client, path: str, body: object, reason: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert error_of(answer) == {"error": SHAPE + reason, "error_type": "validation"}


@pytest.mark.parametrize("validator", ["compiled", "reference"])
def test_both_validators_give_the_same_answer(validator: str) -> None:
    with live_server(validator=validator) as live, live.client() as client:
        good = client.post("/v1/chat/completions", json=CHAT)
        bad = client.post("/v1/chat/completions", json={**CHAT, "n": 1.0})
    assert good.status_code == 200
    assert bad.json()["error"] == f"{SHAPE}n: expected an integer or null, got 1.0"


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/generate", {"inputs": "Hi"}, None),
        ("/generate", {"inputs": "Hi", "foo": 1, "Bar": None}, "Bar,foo"),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"foo": {"bar": 1}, "max_new_tokens": 1}},
            "parameters.foo",
        ),
        ("/generate", {"inputs": "Hi", "stream": True}, "stream"),
        ("/generate", {"inputs": "Hi", "stream": False}, None),
        ("/generate_stream", {"inputs": "Hi", "parameters": {"a b,ü": 1}}, "parameters.a?b??"),
        ("/v1/chat/completions", {**CHAT, "user": "me", "metadata": {"a": "b"}}, "metadata,user"),
        ("/v1/chat/completions", {**CHAT, "user": None}, None),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "auto", "tools": [], "n": 1}, None),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "x": 1}], "y": 2}] * 2},
            "messages[].content[].x,messages[].y",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "stream": True, "stream_options": {"foo": 1}},
            "stream_options.foo",
        ),
        ("/invocations", {"inputs": "Hi", "messages": 5}, "messages"),
        ("/invocations", {**CHAT, "inputs": 5, "user": "me"}, "inputs,user"),
        ("/invocations", {"prompt": "Hi", "parameters": {}}, "parameters"),
        (
            "/vertex",
            {"instances": [{"inputs": "Hi", "parameters": {"details": True, "max_new_tokens": 1}, "x": 1}]},
            "instances[].parameters.details,instances[].x",
        ),
        (
            "/vertex",
            {"instances": [{**CHAT, "model": "tgi", "user": "me"}, {**CHAT, "model": "m"}]},
            "instances[].model,instances[].user",
        ),
        (
            "/v2/models/m/infer",
            {"inputs": [{"data": ["Hi"], "datatype": "FP32", "x": 1}], "parameters": {"top_n_tokens": 2}},
            "inputs[].datatype,inputs[].x,parameters.top_n_tokens",
        ),
        (
            "/v1/chat/completions",
            {
                **CHAT,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "description": "d", "strict": False, "schema": {"$id": "x"}},
                },
            },
            "response_format.json_schema.description",
        ),
        (
            "/v1/chat/completions",
            {
                **CHAT,
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "x": 1,
                            "parameters": {"type": "object", "properties": {"user": {"x": 1}}, "x": 1},
                        },
                    }
                ],
            },
            "tools[].function.x",
        ),
    ],
)
def test_members_without_effect_are_named(
    client: httpx.Client, path: str, body: object, ignored: str | None
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ignored-parameters") == ignored


def test_a_long_list_of_members_is_cut(client: httpx.Client) -> None:
    names = [f"x{number:03}" for number in range(500)]
    answer = client.post("/generate", json={"inputs": "Hi", **dict.fromkeys(names, 1)})
    assert answer.headers["x-ignored-parameters"].split(",") == [*names[:20], "..."]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,"}}]}],
            "`messages[0].content[0].type` is 'image_url'; this model reads text only: "
            "send parts of type 'text'",
        ),
        (
            "function_call",
            "f",
            "`function_call` is not supported: it was replaced by `tool_choice`; "
            'leave it out or send "none" or "auto" or null',
        ),
        (
            "modalities",
            ["text", "audio"],
            '`modalities` is not supported: only text is generated; leave it out or send ["text"] or null',
        ),
    ],
)
def test_a_member_that_is_not_supported_is_refused(
    client: httpx.Client, path: str, member: str, value: Any, message: str
) -> None:
    answer = client.post(path, json={**CHAT, member: value})
    assert answer.status_code == 422
    assert error_of(answer) == {"error": f"Input validation error: {message}", "error_type": "validation"}


def test_a_suffix_is_refused_in_tgis_words(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "Hi", "suffix": "!"})
    assert answer.status_code == 422
    assert error_of(answer) == {
        "error": "Suffix is not supported and can be achieved by preprocessing the prompt.",
        "error_type": "suffix not supported",
    }
