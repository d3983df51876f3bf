"""Requests with images, and what is answered; for the fake engine that sees."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import httpx

from tests.support import LiveServer, error_of, message_of

CHAT, GENERATE, COMPLETIONS = "/v1/chat/completions", "/generate", "/v1/completions"
Part = dict[str, Any]
Serve = Callable[..., LiveServer]
WHERE = "`messages[0].content[0].image_url.url`: "


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image(url: str, **members: Any) -> Part:
    return {"type": "image_url", "image_url": {"url": url, **members}}


def text(said: str) -> Part:
    return {"type": "text", "text": said}


def chat(*parts: Part, **members: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": list(parts)}],
        "temperature": 0,
        "max_tokens": 12,
        **members,
    }


def prompt(inputs: str, **members: Any) -> dict[str, Any]:
    return {
        "inputs": inputs,
        "parameters": {"max_new_tokens": 8, "do_sample": False, "details": True},
        **members,
    }


def answered(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "x-ignored-parameters" not in response.headers
    return response.json()


def refused(http: httpx.Client, path: str, body: dict[str, Any], status: int = 422) -> str:
    response = http.post(path, json=body)
    assert response.status_code == status, response.text
    return message_of(error_of(response)).removeprefix("Input validation error: ")


def said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])
