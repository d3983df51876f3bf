"""Nothing that a client sends makes the server fetch or read a file, and no error says where it lives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from handlers.routes.operations import OPERATIONS
from tests.security.no_network import asked_in_process
from tests.support import live_server

URLS = [
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:22/",
    "http://[::1]/",
    "http://localhost:3000/metrics",
    "https://example.com/cat.png",
    "http://0x7f000001/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "data:image/png;base64,iVBORw0KGgo=",
]
PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "a\x00b",
    "C:\\windows",
    "~root",
    "x/../../y",
]
INSIDES = re.compile(r"0x[0-9a-f]{6,}|site-packages|/usr/|/home/|/root/|Traceback|\.py\b|line \d+, in")


LOOKS = ("open", "os.listdir", "os.scandir")  # what Python tells of before it looks into a file or directory


class Watch:
    """Notes what this process opens, by whatever call, while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)  # can't be removed

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in LOOKS and isinstance(args[0], str | bytes | os.PathLike):
            self.seen.append(os.fsdecode(args[0]))


WATCH = Watch()


@pytest.fixture
def opened(client: httpx.Client) -> Iterator[list[str]]:
    """Return what this process, the server's as well, opens from here on."""
    _ask_for("model", client)  # what is only loaded for the first of such requests is loaded now
    WATCH.seen, WATCH.on = [], True
    yield WATCH.seen
    WATCH.on = False


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat_tokenize", "/invocations"])
def test_a_model_that_does_not_see_has_no_image_fetched(path: str, no_network: list[str]) -> None:
    def with_image(url: str) -> dict[str, Any]:
        part = {"type": "image_url", "image_url": {"url": url}}
        content = [{"type": "text", "text": "What is it?"}, part]
        return {"messages": [{"role": "user", "content": content}], "max_tokens": 2}

    answers = asked_in_process([(path, with_image(url)) for url in URLS])
    assert [answer.status_code for answer in answers] == [422] * len(URLS)
    assert all("this model reads text only" in answer.json()["error"] for answer in answers)
    assert no_network == []


def test_images_without_number_are_refused_as_one_is(client: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    body = {"messages": [{"role": "user", "content": [part] * 1000}], "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 1000


def test_an_address_in_a_prompt_is_text(no_network: list[str]) -> None:
    answers = asked_in_process(
        [
            ("/generate", {"inputs": "![](http://127.0.0.1/cat.png)What is it?"}),
            ("/v1/completions", {"prompt": "http://127.0.0.1/"}),
        ]
    )
    assert [answer.status_code for answer in answers] == [200, 200]
    assert no_network == []


@pytest.mark.parametrize("name", PATHS)
def test_a_model_or_an_adapter_is_never_looked_for_as_a_file(
    name: str, client: httpx.Client, opened: list[str]
) -> None:
    _ask_for(name, client)
    assert opened == []


@pytest.mark.parametrize("look", [open, os.listdir, os.scandir, os.open])
def test_any_look_at_a_file_is_seen(look: Any, tmp_path: Path, opened: list[str]) -> None:
    with contextlib.suppress(OSError):
        look(*((tmp_path / "x", os.O_RDONLY) if look is os.open else (tmp_path / "x",)))
    assert opened == [str(tmp_path / "x")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", "{"),
        ("/generate", {"inputs": 5}),
        ("/generate", {"inputs": "Hi", "parameters": {"grammar": {"type": "regex", "value": "("}}}),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": {"$ref": "#/x"}}}},
        ),
        ("/generate", {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": "{"}}}),
        ("/generate", {"inputs": "\ud800"}),
        ("/v1/chat/completions", {"messages": [{"role": 5}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "tools": [{}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"messages": 1}},
        ),
        ("/v1/responses", {"input": [{"role": 5}]}),
        ("/v1/messages", {"messages": [{"role": 5}]}),
        ("/v1/responses", {"input": "Hi", "tools": [{}]}),
        ("/v1/completions", {"prompt": [10**9]}),
        ("/v2/models/m/infer", {"inputs": [{"data": [255]}]}),
        ("/nowhere", {}),
    ],
)
def test_an_error_tells_nothing_of_the_insides(path: str, body: Any, client: httpx.Client) -> None:
    content = body if isinstance(body, str) else json.dumps(body)  # a lone surrogate comes escaped
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert INSIDES.search(answer.text) is None
    assert "server" not in answer.headers
    assert not any(
        "python" in value.lower() or "uvicorn" in value.lower() for value in answer.headers.values()
    )


def test_a_fault_of_ours_tells_its_request_id_and_nothing_else() -> None:
    async def fail(*_: object) -> Any:
        raise RuntimeError(f"{object()} in {__file__}")

    with live_server(operations=dict.fromkeys(OPERATIONS, fail)) as live:
        answer = live.post("/generate", {"inputs": "Hi"})
    assert answer.status_code == 500
    assert INSIDES.search(answer.text) is None
    assert answer.headers["x-request-id"] in answer.json()["error"]


def _ask_for(name: str, client: httpx.Client) -> None:
    """Name a model and an adapter wherever a request can."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "model": name}
    assert client.post("/v1/chat/completions", json=chat).status_code in (200, 404, 422)
    adapter = {"inputs": "Hi", "parameters": {"adapter_id": name}}
    assert client.post("/generate", json=adapter).status_code == 422
    quoted = urllib.parse.quote(name, safe="")
    for path in (f"/v1/models/{quoted}", f"/v2/models/{quoted}", f"/v1/models/{quoted}/x"):
        assert client.get(path).status_code in (200, 404)
