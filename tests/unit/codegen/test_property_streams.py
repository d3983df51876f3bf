"""What is wrong with a stream is told: each rule with a stream that breaks it, and streams that are right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codegen.document import Document
from codegen.property_contract import promises
from codegen.property_streams import stream_problems

PROMISES = promises(Document.load())
TOKEN = {"id": 1, "text": " a", "logprob": -0.5, "special": False}
ERROR = {"error": "no", "error_type": "generation"}
KIND = {"type": "server_error", "param": None, "code": "generation"}
FAILED = {"error": {"message": "no", **KIND, "http_status_code": 424, "error_type": "generation"}}
DONE = "data: [DONE]\n\n"


def token(index: int, text: str | None = None) -> dict[str, Any]:
    return {"index": index, "token": TOKEN, "generated_text": text, "details": None}


def chunk(finish: str | None = None, index: int = 0, **changes: Any) -> dict[str, Any]:
    delta = {"role": "assistant", "content": "a"}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    said = {"object": "chat.completion.chunk", "id": "c-1", "created": 1, "model": "m"}
    return {**said, "system_fingerprint": "f", "choices": [choice], "usage": None, **changes}


def framed(*events: Any) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


TGI_RIGHT = {
    "one": framed(token(1, "a")),
    "two": framed(token(1), token(2, "aa")),
    "a comment": framed(token(1)) + ":\n\n" + framed(token(2, "aa")),
    "failed": framed(token(1), ERROR),
}
TGI_WRONG = {
    "nothing": "",
    "cut": framed(token(1)) + "data: {",
    "no end": framed(token(1), token(2)),
    "two ends": framed(token(1, "a"), token(2, "a")),
    "after the end": framed(token(1, "a"), token(2)),
    "after the error": framed(ERROR, token(1, "a")),
    "numbers": framed(token(1), token(3, "a")),
    "done": framed(token(1, "a")) + DONE,
    "an undeclared member": framed({**token(1, "a"), "debug": 1}),
    "a missing member": framed({"index": 1, "token": TOKEN, "generated_text": "a"}),
    "another dialect's error": framed(token(1), FAILED),
    "an event line": "event: token\n" + framed(token(1, "a")),
    "no JSON": "data: hello\n\n",
}
CHAT_RIGHT = {
    "one": framed(chunk(), chunk("stop")) + DONE,
    "two choices": framed(chunk(), chunk(index=1), chunk("stop"), chunk("length", 1)) + DONE,
    "failed": framed(chunk(), FAILED) + DONE,
}
CHAT_WRONG = {
    "no done": framed(chunk("stop")),
    "done twice": framed(chunk("stop")) + DONE + DONE,
    "done first": DONE + framed(chunk("stop")),
    "no end": framed(chunk(), chunk()) + DONE,
    "two ends": framed(chunk("stop"), chunk("stop")) + DONE,
    "a choice without end": framed(chunk("stop"), chunk(index=1)) + DONE,
    "two ids": framed(chunk(), chunk("stop", id="c-2")) + DONE,
    "TGI's error": framed(chunk(), ERROR) + DONE,
    "an unknown reason": framed(chunk("end")) + DONE,
}


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        *(pytest.param("generate_stream", text, id=f"TGI: {name}") for name, text in TGI_RIGHT.items()),
        *(pytest.param("chat_completions", text, id=f"chat: {name}") for name, text in CHAT_RIGHT.items()),
    ],
)
def test_nothing_is_wrong_with_a_stream_that_is_right(operation: str, text: str) -> None:
    assert list(stream_problems(PROMISES[operation], text)) == []


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        *(pytest.param("generate_stream", text, id=f"TGI: {name}") for name, text in TGI_WRONG.items()),
        *(pytest.param("chat_completions", text, id=f"chat: {name}") for name, text in CHAT_WRONG.items()),
    ],
)
def test_what_is_wrong_with_a_stream_is_told(operation: str, text: str) -> None:
    assert list(stream_problems(PROMISES[operation], text))
