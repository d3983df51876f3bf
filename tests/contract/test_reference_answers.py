"""What the server answers is valid in every document that clients were made from, or said to be otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from codegen.compat import validate_response
from codegen.document import EVENTS, Document
from tests.contract.serving import events_of, served

REFERENCES = Path(__file__).parents[2] / "../shared/reference/specs"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not REFERENCES.is_dir(), reason="the documents to compare with are not at ../shared/reference/specs"
    ),
]

Call = tuple[str, str, Any]  # path, method, body

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
DETAILED = {
    "best_of": 2,
    "do_sample": True,
    "details": True,
    "top_n_tokens": 3,
    "decoder_input_details": True,
}
SCHEMA = {"type": "object", "properties": {"place": {"enum": ["Paris", "Rome"]}}, "required": ["place"]}
TOOLS = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "max_tokens": 100,
}
RICHER: list[Call] = [
    ("/generate", "post", {"inputs": "Hello", "parameters": {**DETAILED, "max_new_tokens": 3}}),
    ("/", "post", {"inputs": "Hello", "parameters": {"details": True, "max_new_tokens": 3}}),
    ("/generate_stream", "post", {"inputs": "Hello", "parameters": {"details": True, "top_n_tokens": 2}}),
    ("/v1/chat/completions", "post", {**CHAT, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", "post", {**CHAT, **STREAM, "logprobs": True}),
    ("/v1/completions", "post", {"prompt": ["One", "Two"], "max_tokens": 3}),
    ("/v1/completions", "post", {"prompt": ["One", "Two"], "max_tokens": 3, "stream": True}),
    ("/v1/chat/completions", "post", {**CHAT, **TOOLS}),
    ("/v1/chat/completions", "post", {**CHAT, **TOOLS, **STREAM, "n": 2, "logprobs": True}),
    ("/v1/chat/completions", "post", {**CHAT, "response_format": {"type": "json_object"}, **STREAM}),
    ("/v1/chat/completions", "post", {**CHAT, **TOOLS, "tool_choice": "nobody"}),
    ("/v1/completions", "post", {"prompt": [[1, 2], [3]], "max_tokens": 2, "echo": True, "logprobs": 2}),
    ("/v1/completions", "post", {"prompt": "One", "n": 2, "logprobs": 0, "max_tokens": 2, **STREAM}),
    ("/invocations", "post", {**CHAT, **TOOLS, **STREAM}),
    ("/generate", "post", {"inputs": "Hello", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}),
    ("/generate", "post", {"inputs": ""}),
    ("/generate", "post", {"inputs": 7}),
    ("/generate_stream", "post", {"inputs": "Hello", "parameters": {"temperature": 0.0}}),
    ("/v1/chat/completions", "post", {**CHAT, "temperature": -1.0}),
    ("/v1/completions", "post", {"prompt": "One", "suffix": "Two"}),
    ("/tokenize", "post", {"inputs": ["Hello"]}),
    ("/invocations", "post", {"nothing": 1}),
]  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _documented() -> Iterator[Call]:
    """Yield every request that the contract gives as an example."""
    for operation in Document.load().operations():
        bodies = operation.node.get("requestBody", {}).get("content", {})
        examples = [
            example["value"]
            for content in bodies.values()
            for example in content.get("examples", {}).values()
        ]
        for body in examples if bodies else [None]:
            yield operation.path, operation.method, body


def _violations(path: str, method: str, response: httpx.Response) -> list[str]:
    media_type = response.headers.get("content-type", "").split(";")[0]
    if media_type == EVENTS:
        bodies = [event for event in events_of(response) if event != "[DONE]"]
        assert bodies
    elif media_type == "application/json":
        bodies = [response.json()]
    else:  # an empty body, or metrics
        return []
    return [
        violation
        for body in bodies
        for violation in validate_response(path, method, response.status_code, body, REFERENCES, media_type)
    ]


def _name(call: Call) -> str:
    return f"{call[1]} {call[0]} {json.dumps(call[2])[:60]}"


@pytest.mark.parametrize("call", [*_documented(), *RICHER], ids=_name)
async def test_the_answer_is_valid_in_every_reference_document(call: Call) -> None:
    path, method, body = call
    async with served(enable_prefill_logprobs=True) as server:
        url = path.replace("{model}", server.service.engine.model.id)
        response = await server.http.request(method.upper(), url, json=body)
        assert response.status_code < 500, response.text
        assert _violations(path, method, response) == []
