"""Bodies and headers that are huge, compressed, nested or slow; and texts that take long to cut."""

from __future__ import annotations

import gzip
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from inference.text.tokenizer import FastTokenizer
from tests.security.raw import connected, head, read_to_end
from tests.support import PATIENCE, LiveServer, live_server

JSON = {"content-type": "application/json"}


def test_a_huge_body_is_refused_by_its_length_before_it_comes(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=10**12))
        sock.shutdown(1)
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_without_an_end_is_refused_as_it_comes_and_then_cut_off() -> None:
    chunk = b"10000\r\n" + b" " * 2**16 + b"\r\n"
    chunked = b"transfer-encoding: chunked\r\n"
    opening = head("POST", "/generate", length=0).replace(b"content-length: 0\r\n", chunked)
    # Few bytes are too many, for which the time is enough on a busy machine, too
    with live_server(payload_limit=100_000, body_timeout=2.0) as live, connected(live) as sock:
        sock.sendall(opening)
        sock.sendall(chunk * 4)
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_without_end(sock, chunk)


def send_without_end(sock: socket.socket, chunk: bytes) -> None:
    while True:
        sock.sendall(chunk)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip"])
def test_a_compressed_body_is_not_unpacked(encoding: str, client: httpx.Client) -> None:
    bomb = gzip.compress(b" " * 10**7)
    answer = client.post("/generate", content=bomb, headers={**JSON, "content-encoding": encoding})
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["error"]


def test_a_body_that_says_it_is_not_compressed_is_read(client: httpx.Client) -> None:
    headers = {**JSON, "content-encoding": "identity"}
    assert client.post("/generate", content=b'{"inputs": "Hi"}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/generate", "/v1/chat/completions", "/v1/responses", "/v1/completions", "/tokenize"]
)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_refused(path: str, opening: str, closing: str, client: httpx.Client) -> None:
    deep = opening * 100_000 + "1" + closing * 100_000
    for body in (deep, f'{{"inputs": {deep}}}', f'{{"inputs": "Hi", "unknown": {deep}}}'):
        answer = client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400, answer.text
        assert len(answer.content) < 1000


def test_deep_values_of_open_members_are_refused_or_served(client: httpx.Client) -> None:
    deep: object = "x"
    for _ in range(500):
        deep = {"a": deep}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}
    for more in ({"chat_template_kwargs": deep}, {"metadata": deep}, {"response_format": schema}):
        answer = client.post("/v1/chat/completions", json={**chat, **more})
        assert answer.status_code in (200, 400, 422), answer.text


def test_headers_beyond_their_bytes_are_refused(client: httpx.Client) -> None:
    answer = client.get("/health", headers={"x-padding": "x" * 70_000})
    assert answer.status_code == 431
    assert "65536 bytes (`header_limit`)" in answer.json()["error"]


def test_headers_beyond_their_number_are_refused(client: httpx.Client) -> None:
    answer = client.get("/health", headers={f"x-{at}": "x" for at in range(200)})
    assert answer.status_code == 431
    assert "headers must be at most 128 (`max_headers`)" in answer.json()["error"]


def test_a_long_path_counts_as_headers_do(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET /" + b"x" * 66_000 + b" HTTP/1.1\r\nhost: parley\r\n\r\n")
        assert sock.recv(4096)[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")  # the parser has a limit, too


def test_headers_without_an_end_are_cut_off(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 8 * 2**20:
                sent += sock.send(b"x-padding: " + b"x" * 8000 + b"\r\n")
        except (ConnectionResetError, BrokenPipeError):
            pass  # closed
        assert sent < 8 * 2**20
        assert read_to_end(sock)[:13] in (b"", b"HTTP/1.1 400 ")


def test_limits_of_headers_are_settings() -> None:
    with live_server(header_limit=1024, max_headers=16) as live, live.client() as one:
        assert one.get("/health").status_code == 200
        assert one.get("/health", headers={"x-padding": "x" * 1024}).status_code == 431
        assert one.get("/health", headers={f"x-{at}": "x" for at in range(16)}).status_code == 431
        assert one.get("/" + "x" * 1024).status_code == 431


@pytest.mark.parametrize(
    ("path", "cut", "times"),
    [("/tokenize", "tokenize", 8_000), ("/tokenize", "tokenize", 60), ("/generate", "encode", 60)],
    ids=["large", "short", "prompt"],  # large texts have threads of their own
)
def test_a_text_that_takes_long_to_cut_holds_up_nobody(
    path: str, cut: str, times: int, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cutting goes on until somebody else was answered, for which the loop has to turn."""
    cuts, began, served = getattr(FastTokenizer, cut), threading.Event(), threading.Event()
    held: list[tuple[str, bool]] = []

    def cut_slowly(tokenizer: FastTokenizer, text: str, *, add_special_tokens: bool) -> object:
        began.set()
        held.append((threading.current_thread().name, served.wait(PATIENCE)))
        return cuts(tokenizer, text, add_special_tokens=add_special_tokens)

    def ask() -> int:
        with server.client() as slow:
            return slow.post(path, json={"inputs": "Ünïcödé 😀 " * times}).status_code

    monkeypatch.setattr(FastTokenizer, cut, cut_slowly)
    with ThreadPoolExecutor(1) as beside, server.client() as other:
        asked = beside.submit(ask)
        assert began.wait(PATIENCE), "the text never was cut"
        assert other.get("/health").status_code == 200
        served.set()
        assert asked.result() == 200
    ((thread, others_were_served),) = held
    assert others_were_served
    assert thread != "live-server"  # the event loop's
