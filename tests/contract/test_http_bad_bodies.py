"""Whatever a client sends as a body, it gets a 4xx in TGI's form, and the server goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

import openapi
from handlers.http.message_errors import speaks_messages
from handlers.http.operations import operation_table
from tests.support import LiveServer, error_of, message_of

JSON = "application/json"
POSTS = {row.id: row.path for row in operation_table(openapi.load()).values() if row.method == "POST"}
DEEP = 100_000

BROKEN: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n",
    "not JSON": b"inputs=Hi",
    "cut off": b'{"inputs": "Hi"',
    "trailing comma": b'{"inputs": "Hi",}',
    "two documents": b'{"inputs": "Hi"} {"inputs": "Hi"}',
    "single quotes": b"{'inputs': 'Hi'}",
    "comment": b'{"inputs": "Hi" /* hello */}',
    "NaN": b'{"inputs": "Hi", "temperature": NaN}',
    "Infinity": b'{"inputs": "Hi", "temperature": Infinity}',
    "beyond a double": b'{"inputs": "Hi", "temperature": 1e999}',
    "5000 digits": b'{"inputs": "Hi", "seed": ' + b"9" * 5000 + b"}",
    "deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * (DEEP // 10) + b"1" + b"}" * (DEEP // 10),
    "invalid UTF-8": b'{"inputs": "\xff\xfe"}',
    "overlong UTF-8": b'{"inputs": "\xc0\x80"}',
    "UTF-16": '{"inputs": "Hi"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"inputs": "Hi"}',
    "lone surrogate": rb'{"inputs": "\ud800"}',
    "lone surrogate in a name": rb'{"inputs": "Hi", "\udfff": 1}',
    "null byte": b'{"inputs": "Hi"\x00}',
    "control character": b'{"inputs": "H\ni"}',
    "bad escape": rb'{"inputs": "\x41"}',
    "leading zero": b'{"inputs": "Hi", "seed": 01}',
}

MISSHAPEN: dict[str, object] = {
    "null": None,
    "number": 5,
    "string": "Hi",
    "array": [{"inputs": "Hi"}],
    "true": True,
    "no member": {},
    "null prompt": {"inputs": None, "messages": None, "prompt": None},
    "numeric prompt": {"inputs": 5, "messages": 5, "prompt": 5},
    "prompt in an object": {"inputs": {"text": "Hi"}, "messages": {"role": "user"}, "prompt": {"text": "Hi"}},
    "messages without role": {"inputs": [{}], "messages": [{"content": "Hi"}], "prompt": [{}]},
}


@pytest.fixture(params=sorted(POSTS))
def path(request: pytest.FixtureRequest) -> str:
    """Give the path of each operation that takes a body."""
    return POSTS[request.param]


@pytest.fixture(autouse=True)
def _still_alive(client: httpx.Client) -> Iterator[None]:
    yield
    assert client.get("/health").status_code == 200


def assert_refused(answer: httpx.Response, status: int, message: str) -> None:
    """Check the one form of all refusals of a body, in which Anthropic's clients get 400 for 422."""
    as_anthropic = speaks_messages(answer.request.url.path)
    assert answer.status_code == (400 if as_anthropic and status == 422 else status), answer.text
    assert answer.headers["content-type"] == JSON
    told = error_of(answer)
    assert set(told) == {"error", "error_type", *(("type",) if as_anthropic else ())}
    assert told["error_type"] == "validation"
    assert message_of(told).startswith(message)
    assert len(message_of(told)) < 500


@pytest.mark.parametrize("name", BROKEN)
def test_a_body_that_is_not_json_is_400(client: httpx.Client, path: str, name: str) -> None:
    answer = client.post(path, content=BROKEN[name], headers={"content-type": JSON})
    assert_refused(answer, 400, "Failed to parse the request body as JSON: ")
    assert re.search("line [12] column", message_of(answer.json()))


@pytest.mark.parametrize("name", MISSHAPEN)
def test_a_body_of_the_wrong_shape_is_422(client: httpx.Client, path: str, name: str) -> None:
    answer = client.post(path, content=json.dumps(MISSHAPEN[name]), headers={"content-type": JSON})
    assert_refused(answer, 422, "Failed to deserialize the JSON body into the target type: ")


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"]
)
def test_a_body_that_is_not_declared_as_json_is_415(
    client: httpx.Client, path: str, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post(path, content=b'{"inputs": "Hi"}', headers=headers)
    assert_refused(answer, 415, "Expected request with `Content-Type: application/json`")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(
    client: httpx.Client, server: LiveServer, path: str, chunked: bool
) -> None:
    body = b'{"inputs": "' + b"x" * server.service.settings.payload_limit + b'"}'
    content = iter([body[:70_000], body[70_000:]]) if chunked else body
    answer = client.post(path, content=content, headers={"content-type": JSON})
    assert_refused(answer, 413, "Failed to buffer the request body: length limit exceeded")


def test_a_body_at_the_limit_is_read(client: httpx.Client, server: LiveServer) -> None:
    frame = b'{"inputs": ""}'
    body = b'{"inputs": "' + b"x" * (server.service.settings.payload_limit - len(frame)) + b'"}'
    # Busy cores take a while
    answer = client.post("/tokenize", content=body, headers={"content-type": JSON}, timeout=60)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"parameters": {"seed": 2**64}},
        {"parameters": {"seed": -1}},
        {"parameters": {"seed": 1.0}},
        {"parameters": {"seed": True}},
        {"parameters": {"top_k": 2**31}},
        {"parameters": {"max_new_tokens": -(2**63) - 1}},
        {"parameters": {"max_new_tokens": "5"}},
        {"parameters": {"do_sample": 1}},
        {"parameters": None},
        {"parameters": []},
    ],
    ids=lambda body: json.dumps(body["parameters"]),
)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations"])
def test_a_parameter_of_the_wrong_type_is_422(client: httpx.Client, path: str, body: object) -> None:
    answer = client.post(path, json={"inputs": "Hi", **dict(body)})  # type: ignore[call-overload]
    assert_refused(answer, 422, "Failed to deserialize the JSON body into the target type: parameters")


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            "/generate",
            b'{"inputs": "x", "parameters": {"seed": 123456789012345678901234567890}}',
            "parameters.seed: expected at most 18446744073709551615, got 123456789012345678901234567890",
        ),
        (
            "/generate",
            b'{"inputs": "x", "parameters": {"seed": -9223372036854775809, "top_k": 18446744073709551615}}',
            "parameters.seed: expected at least 0, got -9223372036854775809",
        ),
        (
            "/generate",
            b'{"inputs": ' + b"9" * 300 + b"}",
            "inputs: expected a string, got " + 40 * "9" + "…",
        ),
        ("/generate", b'{"inputs": 1e30, "a": 12345678901234567890}', "inputs: expected a string, got 1e+30"),
    ],
)
def test_a_number_is_told_as_it_was_sent(client: httpx.Client, path: str, body: bytes, told: str) -> None:
    answer = client.post(path, content=body, headers={"content-type": JSON})
    assert_refused(answer, 422, f"Failed to deserialize the JSON body into the target type: {told}")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"inputs": 5, "inputs": "Hi"}', "inputs"),
        (b'{"inputs": "Hi", "parameters": {"max_new_tokens": 2, "max_new_tokens": 1}}', "max_new_tokens"),
    ],
)
def test_a_repeated_member_is_refused_as_by_tgi(client: httpx.Client, body: bytes, name: str) -> None:
    answer = client.post("/generate", content=body, headers={"content-type": JSON})
    words = f"Failed to deserialize the JSON body into the target type: duplicate field `{name}`"
    assert_refused(answer, 422, words)


def test_a_null_character_in_a_text_is_a_character(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"inputs": "a\0b"}).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "application/json ; charset=bogus",
        "APPLICATION/JSON",
        "application/a+json",
    ],
)
def test_any_declaration_of_json_is_read(client: httpx.Client, content_type: str) -> None:
    answer = client.post("/tokenize", content=b'{"inputs": "Hi"}', headers={"content-type": content_type})
    assert answer.status_code == 200


def test_a_chunked_body_is_read(client: httpx.Client) -> None:
    answer = client.post(
        "/tokenize", content=iter([b'{"inp', b'uts": "Hi"}']), headers={"content-type": JSON}
    )
    assert answer.status_code == 200
