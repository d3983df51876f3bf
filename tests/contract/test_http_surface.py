"""What holds for every request: routes, methods, keys, ids, limits, CORS."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import httpx
import pytest

import openapi
from handlers.http.errors import RESPONSES
from handlers.http.message_errors import speaks_messages
from handlers.http.operations import operation_table
from handlers.http.protocol import MOST_PIPELINED
from tests.support import PATIENCE, LiveServer, live_server

TABLE = operation_table(openapi.load())
KEY = "s3cret-Key"
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """Talk to a server with a key that only one origin may call."""
    with live_server(api_key=KEY, cors_allow_origin=(ORIGIN,)) as live, live.client() as connected:
        yield connected


def test_an_unknown_path_is_404(client: httpx.Client) -> None:
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error_type"] == "not_found"


@pytest.mark.parametrize("path", ["/generate/", "/health/", "/v1/models/", "/Generate", "/docs/nowhere"])
def test_a_path_is_not_corrected(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={"inputs": "Hi"})
    assert answer.status_code in (404, 405)
    assert "location" not in answer.headers
    assert answer.json()["error_type"] in ("not_found", "method_not_allowed")


@pytest.mark.parametrize("path", sorted({row.path for row in TABLE.values()}))
def test_a_wrong_method_is_405_and_told_all_that_are_right(client: httpx.Client, path: str) -> None:
    allowed = {row.method for row in TABLE.values() if row.path == path}
    answer = client.request("DELETE", path.replace("{model}", "m"))
    assert answer.status_code == 405
    assert answer.json()["error_type"] == "method_not_allowed"
    assert set(answer.headers["allow"].split(", ")) == allowed | ({"HEAD"} if "GET" in allowed else set())


@pytest.mark.parametrize(
    "path", ["/", "/health", "/info", "/v1/models", "/metrics", "/docs/", "/openapi.json"]
)
def test_head_answers_like_get_without_a_body(client: httpx.Client, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers.get("content-type") == get.headers.get("content-type")


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_what_the_document_secures_asks_for_the_key(locked: httpx.Client, row: object) -> None:
    row = TABLE[row.id]  # type: ignore[attr-defined]
    path = row.path.replace("{model}", "m")
    answer = locked.request(row.method, path, json={} if row.request_schema else None)
    assert (answer.status_code == 401) is row.secured
    if not row.secured:
        return
    assert answer.headers["www-authenticate"] == "Bearer"
    if speaks_messages(path):  # Anthropic's clients want a body
        assert answer.json()["error"]["type"] == "authentication_error"
    elif path.startswith(RESPONSES):  # as do OpenAI's
        assert answer.json()["error"]["code"] == "invalid_api_key"
    else:
        assert answer.content == b""
        assert "content-type" not in answer.headers


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        (f"Bearer {KEY}".encode(), True),
        (f"bearer {KEY}".encode(), True),
        (f"BEARER   {KEY}".encode(), True),
        (f"Bearer {KEY.lower()}".encode(), False),
        (f"Bearer {KEY}x".encode(), False),
        (f"Bearer {KEY[:-1]}".encode(), False),
        (b"Bearer", False),
        (b"", False),
        (KEY.encode(), False),
        (f"Basic {KEY}".encode(), False),
        (f"Bearer {KEY}, Bearer {KEY}".encode(), False),
        (b"Bearer \xff\xfe", False),
    ],
)
def test_the_key_counts_exactly_and_the_scheme_in_any_case(
    locked: httpx.Client, value: bytes, passes: bool
) -> None:
    answer = locked.post("/tokenize", json={"inputs": "Hi"}, headers={b"authorization": value})
    assert answer.status_code == (200 if passes else 401)


def test_two_authorizations_are_none(locked: httpx.Client) -> None:
    pairs = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    assert locked.post("/tokenize", json={"inputs": "Hi"}, headers=pairs).status_code == 401


def test_the_key_is_asked_for_before_the_body_is_looked_at(locked: httpx.Client) -> None:
    assert locked.post("/generate", content=b"{").status_code == 401


@pytest.mark.parametrize(
    "path", ["/health", "/nowhere", "/openapi.json", "/docs", "/generate", "/tokenize", "/v1/models/unknown"]
)
def test_every_response_has_a_request_id(client: httpx.Client, path: str) -> None:
    ids = [client.get(path).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{32}", made) for made in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1.2_3", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("", False),
        ("é", False),
        ("a;b", False),
    ],
)
def test_a_sane_request_id_is_given_back(client: httpx.Client, given: str, kept: bool) -> None:
    answer = client.get("/health", headers={b"x-request-id": given.encode()})
    assert (answer.headers["x-request-id"] == given) is kept


@pytest.mark.parametrize("size", [65_600, 200_000])
def test_path_that_is_too_long_for_the_parser_is_431(server: LiveServer, size: int) -> None:
    connection = HTTPConnection(server.host, server.port, timeout=PATIENCE)
    connection.request("GET", "/" + "x" * (size - 1))
    answer = connection.getresponse()
    said = "must be at most 65535 bytes (`header_limit`, and never more than 65535)"
    assert answer.status == 431
    assert f"{said}. Given: {size} bytes" in json.loads(answer.read())["error"]
    assert server.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "path", ["/docs", "/docs/", "/openapi.json", "/openapi.yaml", "/api-doc/openapi.json"]
)
def test_pages_beside_the_contract_say_which_methods_they_have(client: httpx.Client, path: str) -> None:
    answer = client.post(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_too_many_header_bytes_are_431_and_the_server_goes_on(client: httpx.Client) -> None:
    answer = client.get("/health", headers={f"x-{number}": "y" * 1000 for number in range(70)})
    assert answer.status_code == 431
    assert answer.json()["error_type"] == "validation"
    assert "x-request-id" in answer.headers
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("piece", [b"x-a: b\r\n", b"x" * 1000], ids=["many headers", "one long header"])
def test_headers_without_end_are_cut_off(server: LiveServer, client: httpx.Client, piece: bytes) -> None:
    flood = piece * (65536 // len(piece))
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx-b: ")
        with contextlib.suppress(ConnectionError):  # the server may close while we still send
            for _ in range(100):
                connection.sendall(flood)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(65536).startswith(b"HTTP/1.1 400")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_bytes_that_are_no_http_do_not_harm(server: LiveServer, client: httpx.Client, raw: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 5" not in connection.recv(65536)
    assert client.get("/health").status_code == 200


def test_a_browser_may_send_the_key(locked: httpx.Client) -> None:
    answer = locked.options(
        "/generate",
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-request-id,x-stainless-lang",
        },
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert {"GET", "POST"} <= set(answer.headers["access-control-allow-methods"].split(", "))
    assert "x-request-id" in answer.headers


def test_a_browser_reads_errors_and_headers(locked: httpx.Client) -> None:
    answer = locked.post("/generate", json={}, headers={"origin": ORIGIN})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "x-ignored-parameters" in answer.headers["access-control-expose-headers"]


def test_another_origin_gets_no_permission(locked: httpx.Client) -> None:
    answer = locked.get("/health", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"origin": "https://evil.example"},
            "--cors-allow-origin names no origin 'https://evil.example': add it there",
        ),
        ({"access-control-request-method": "DELETE"}, "the method must be one of GET, POST. Given: 'DELETE'"),
        (
            {"origin": "null", "access-control-request-method": "x" * 101},
            "--cors-allow-origin names no origin 'null': add it there; "
            f"the method must be one of GET, POST. Given: '{'x' * 100}…'",
        ),
        (
            {"access-control-request-private-network": "true"},
            "pages of public networks may not call a private one: serve the page from this network",
        ),
    ],
)
def test_a_browser_is_told_why_a_page_may_not_call(
    locked: httpx.Client, asked: dict[str, str], told: str
) -> None:
    fine = {"origin": ORIGIN, "access-control-request-method": "POST"}
    answer = locked.options("/generate", headers=fine | asked)
    assert (answer.status_code, answer.text) == (400, f"Disallowed CORS request: {told}")
    assert ("access-control-allow-origin" in answer.headers) == ("origin" not in asked)
    assert "access-control-request-method" in answer.headers["vary"].lower()


def test_any_origin_may_call_a_server_without_a_list(client: httpx.Client) -> None:
    assert client.get("/health", headers={"origin": ORIGIN}).headers["access-control-allow-origin"] == "*"
    assert "vary" not in client.get("/health").headers


def test_each_request_is_logged_once(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="parley.access"):
        client.post("/tokenize?key=1", json={"inputs": "Hi"}, headers={"x-request-id": "logged-1"})
        client.post("/generate", json={}, headers={"x-request-id": "logged-3"})
        client.get("/no%0Awhere", headers={"x-request-id": "logged-2"})
        deadline = time.monotonic() + PATIENCE  # a line is written once its client has the answer
        while len(lines := [each for each in caplog.records if each.name == "parley.access"]) < 3:
            assert time.monotonic() < deadline, lines
            time.sleep(0.005)
    said = [record.getMessage() for record in lines]
    assert said == ["POST /tokenize", "POST /generate", "GET /no%0Awhere"]
    told = [(vars(line)["status"], vars(line)["request_id"], vars(line)["operation"]) for line in lines]
    assert told == [(200, "logged-1", "tokenize"), (422, "logged-3", "generate"), (404, "logged-2", "")]
    assert all(vars(line)["seconds"] >= 0 for line in lines)


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAA\r\n"
BODY = '{"inputs":"Hi","parameters":{"max_new_tokens":1}}'
FRAMED = {
    "length": f"Content-Length: {len(BODY)}\r\n\r\n{BODY}",
    "chunks": f"Transfer-Encoding: chunked\r\n\r\n{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("framed", FRAMED.values(), ids=FRAMED)
@pytest.mark.parametrize("piece", [1, 100, 100_000])
def test_an_offered_upgrade_changes_nothing(server: LiveServer, framed: str, piece: int) -> None:
    head = "POST /generate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    following = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    sent = (head + UPGRADE + framed + following).encode()
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        for at in range(0, len(sent), piece):
            connection.sendall(sent[at : at + piece])
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    first, second = received.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 OK")
    assert b'{"generated_text":' in first
    assert second.startswith(b"200 OK")


def test_all_pipelined_requests_can_offer_an_upgrade(server: LiveServer) -> None:
    offering = f"GET /health HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n"
    last = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall((offering * (MOST_PIPELINED - 1) + last).encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 OK\r\n") == MOST_PIPELINED
