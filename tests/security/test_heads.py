"""Heads that two readers could understand differently: answered as RFC 9112 says, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.security.raw import connected, read_to_end
from tests.security.test_connections import CHUNKED, told_in_json
from tests.support import LiveServer, live_server

HOST = b"host: parley\r\n"
LAST = HOST + b"connection: close\r\n"
BODY = b'{"inputs":"Hi","parameters":{"max_new_tokens":1}}'
POST = b"POST /generate HTTP/1.1\r\ncontent-type: application/json\r\n" + LAST
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
STATUS = re.compile(rb"HTTP/1\.1 \d{3} ")

ANSWERED = {
    "host and port": b"GET /health HTTP/1.1\r\nhost: parley:3000\r\nconnection: close\r\n\r\n",
    "host of an address": b"GET /health HTTP/1.1\r\nhost: [::1]:3000\r\nconnection: close\r\n\r\n",
    "host that is empty": b"GET /health HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n",
    "host with an underscore": b"GET /health HTTP/1.1\r\nhost: a_b.svc\r\nconnection: close\r\n\r\n",
    "host between spaces": b"GET /health HTTP/1.1\r\nhost:\t parley:3000 \t\r\nconnection: close\r\n\r\n",
    "1.0 without a host": b"GET /health HTTP/1.0\r\n\r\n",
    "line breaks before it": b"\r\n\r\nGET /health HTTP/1.1\r\n" + LAST + b"\r\n",
    "a URL": b"GET http://elsewhere/health HTTP/1.1\r\n" + LAST + b"\r\n",
    "a URL, written large": b"GET HTTPS://elsewhere:1/health?a=b#c HTTP/1.1\r\n" + LAST + b"\r\n",
    "a query": b"GET /health?a=b HTTP/1.1\r\n" + LAST + b"\r\n",
    "a header beyond ASCII": b"GET /health HTTP/1.1\r\nx: \xff\r\n" + LAST + b"\r\n",
    "a length": POST + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "a length with zeros": POST + b"content-length: 00%d\r\n\r\n%s" % (len(BODY), BODY),
    "chunks": POST + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks, written large": POST + b"Transfer-Encoding:  CHUNKED \r\n\r\n" + CHUNKS,
    "chunks with an extension": POST
    + b"transfer-encoding: chunked\r\n\r\n"
    + CHUNKS.replace(b"\r", b";a=b\r", 1),
    "line breaks after it": POST + b"content-length: %d\r\n\r\n%s\r\n\r\n" % (len(BODY), BODY),
    "more after the last one": POST + b"content-length: %d\r\n\r\n%sGET /x HTTP/1.1\r\n" % (len(BODY), BODY),
}

REFUSED = {
    "no version": (400, b"GET /health\r\n\r\n"),
    "version 2": (505, b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n"),
    "version 1.2": (400, b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n"),
    "version 11": (400, b"GET /health HTTP/11.1\r\n" + HOST + b"\r\n"),
    "version in small letters": (400, b"GET /health http/1.1\r\n" + HOST + b"\r\n"),
    "HTTP/2's preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "no host": (400, b"GET /health HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
    "the same host twice": (400, b"GET /health HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n"),
    "two hosts of 1.0": (400, b"GET /health HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n"),
    "a host with a path": (400, b"GET /health HTTP/1.1\r\nhost: a/b\r\n\r\n"),
    "a host with a user": (400, b"GET /health HTTP/1.1\r\nhost: me@a\r\n\r\n"),
    "hosts in a list": (400, b"GET /health HTTP/1.1\r\nhost: a, b\r\n\r\n"),
    "a host beyond ASCII": (400, b"GET /health HTTP/1.1\r\nhost: \xc3\xa4\r\n\r\n"),
    "a method in small letters": (400, b"get /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an unknown method": (400, b"FETCH /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "tabs": (400, b"GET\t/health\tHTTP/1.1\r\n" + HOST + b"\r\n"),
    "a target without a path": (400, b"GET * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "the whole server's options": (400, b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a tunnel": (400, b"CONNECT elsewhere:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a path without a slash": (400, b"GET health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a path beyond ASCII": (400, b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n"),
    "NUL in the target": (400, b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "NUL in a value": (400, b"GET /health HTTP/1.1\r\nx: a\0b\r\n" + HOST + b"\r\n"),
    "NUL in a name": (400, b"GET /health HTTP/1.1\r\nx\0: a\r\n" + HOST + b"\r\n"),
    "DEL in a value": (400, b"GET /health HTTP/1.1\r\nx: a\x7fb\r\n" + HOST + b"\r\n"),
    "a bare CR in a value": (400, b"GET /health HTTP/1.1\r\nx: a\rb\r\n" + HOST + b"\r\n"),
    "a bare CR for a line's end": (400, b"GET /health HTTP/1.1\rhost: a\r\r"),
    "a bare LF for a line's end": (400, b"GET /health HTTP/1.1\nhost: a\n\n"),
    "a folded line": (400, b"GET /health HTTP/1.1\r\nx: a\r\n b\r\n" + HOST + b"\r\n"),
    "a space before the first header": (400, b"GET /health HTTP/1.1\r\n " + HOST + b"\r\n"),
    "a space before the colon": (400, b"GET /health HTTP/1.1\r\nhost : a\r\n\r\n"),
    "no colon": (400, b"GET /health HTTP/1.1\r\nx\r\n" + HOST + b"\r\n"),
    "no name": (400, b"GET /health HTTP/1.1\r\n: a\r\n" + HOST + b"\r\n"),
    "length and chunks": (400, POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS),
    "chunks and length": (400, POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + CHUNKS),
    "the same length twice": (400, POST + b"content-length: 49\r\ncontent-length: 49\r\n\r\n" + BODY),
    "two lengths": (400, POST + b"content-length: 49\r\ncontent-length: 4\r\n\r\n" + BODY),
    "lengths in a list": (400, POST + b"content-length: 49, 49\r\n\r\n" + BODY),
    "a length with a plus": (400, POST + b"content-length: +49\r\n\r\n" + BODY),
    "a length with a minus": (400, POST + b"content-length: -49\r\n\r\n" + BODY),
    "a length in hexadecimal": (400, POST + b"content-length: 0x31\r\n\r\n" + BODY),
    "a length with an underscore": (400, POST + b"content-length: 4_9\r\n\r\n" + BODY),
    "a length of thirty digits": (400, POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n" + BODY),
    "a length that is empty": (400, POST + b"content-length:\r\n\r\n" + BODY),
    "another coding": (400, POST + b"transfer-encoding: gzip\r\n\r\n" + BODY),
    "another coding in chunks": (501, POST + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS),
    "chunks inside of another coding": (400, POST + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS),
    "chunks twice": (400, POST + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKS),
    "chunks, nearly": (400, POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS),
    "chunks of 1.0": (400, POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS),
    "a chunk's size with a plus": (400, POST + b"transfer-encoding: chunked\r\n\r\n+" + CHUNKS),
    "a chunk's size with a minus": (400, POST + b"transfer-encoding: chunked\r\n\r\n-" + CHUNKS),
    "a chunk's size with 0x": (400, POST + b"transfer-encoding: chunked\r\n\r\n0x" + CHUNKS),
    "a chunk's size beyond 64 bits": (400, POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17),
    "a chunk that is longer": (400, POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n"),
    "chunks ended by bare LF": (
        400,
        POST + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS.replace(b"\r\n", b"\n"),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Serve for all of these: none may harm the next."""
    with live_server() as live:
        yield live


@pytest.mark.parametrize("head", ANSWERED.values(), ids=ANSWERED)
def test_what_is_well_formed_is_answered_once(head: bytes, server: LiveServer) -> None:
    answer = answer_to(head, server)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(STATUS.findall(answer)) == 1


@pytest.mark.parametrize(("status", "head"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_is_refused_and_closed(status: int, head: bytes, server: LiveServer) -> None:
    answer = answer_to(head, server)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert len(STATUS.findall(answer)) == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert told_in_json(answer)["error_type"] == "validation"


@pytest.mark.parametrize("name", ["two hosts", "a host with a user", "version 2", "a tunnel"])
def test_a_refusal_of_ours_says_what_must_be_and_what_was_given(name: str, server: LiveServer) -> None:
    assert re.search(r"must .* Given: ", told_in_json(answer_to(REFUSED[name][1], server))["error"])


def test_a_url_without_a_path_is_that_of_the_root(server: LiveServer) -> None:
    for target in (b"http://elsewhere", b"http://elsewhere?a=b"):
        answer = answer_to(b"GET " + target + b" HTTP/1.1\r\n" + LAST + b"\r\n", server)
        assert answer.startswith(b"HTTP/1.1 200 ")  # `/` tells of health


def test_what_is_no_request_does_not_cost_the_answer_to_the_one_before_it(server: LiveServer) -> None:
    """As it comes from who counts characters for a length in bytes."""
    whole = POST.replace(b"connection: close\r\n", b"") + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
    for rest in (b"}}", b"GET /health HTTP/1.1\r\nhost: a/b\r\n\r\n"):
        answer = answer_to(whole + rest, server)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(STATUS.findall(answer)) == 1
        assert b"generated_text" in answer


def test_answers_to_1_0_have_no_chunks_and_end_with_the_connection(server: LiveServer) -> None:
    sent = b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
    for path, start, end in ((b"/generate", b"{", b"}"), (b"/generate_stream", b"data: {", b"}\n\n")):
        answer = answer_to(POST.replace(b"/generate HTTP/1.1", path + b" HTTP/1.0") + sent, server)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert body.startswith(start)
        assert body.endswith(end)


def answer_to(raw: bytes, server: LiveServer) -> bytes:
    with connected(server) as sock:
        sock.sendall(raw)
        return read_to_end(sock)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"nonsense\r\n\r\n", "it doesn't begin with a method, as TLS doesn't, which isn't spoken here"),
        (b"\x16\x03\x01\x02", "it doesn't begin with a method, as TLS doesn't, which isn't spoken here"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it is HTTP/2, which isn't spoken here"),
        (b"GET /a b HTTP/1.1\r\n\r\n", "behind a path without spaces HTTP/ is expected"),
        (CHUNKED + b"nonsense\r\n\r\n", "Invalid character in chunk size"),
        (CHUNKED.replace(b"\r\n", b"\r\ncontent-length: 3\r\n", 1), "can't be present with"),
    ],
)
def test_what_is_not_http_is_told_so_in_json(server: LiveServer, sent: bytes, reason: str) -> None:
    with connected(server) as sock:
        sock.sendall(sent)
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 400 ")
    told = told_in_json(answer)
    assert told["error_type"] == "validation"
    assert told["error"].startswith("Invalid HTTP request received: ")
    assert reason in told["error"]
    assert told["error"].endswith(". Send HTTP/1.1")
