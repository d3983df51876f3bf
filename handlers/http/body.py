"""Request bodies: are they declared as JSON, do they fit the limit, are they JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

import orjson
from starlette.types import Receive, Scope

from handlers.http.errors import ClientDisconnected, Refused
from handlers.http.exchange import Exchange, exchange_of

Grows = Callable[[int], None]  # bytes

STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
NAME_END = re.compile(rb'"[ \t\r\n]*:')
CONTAINERS = frozenset((dict, list))
JSON_TYPE = re.compile(rb"\s*application/(?:[\w!#$&^.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def require_json(scope: Scope) -> None:
    """Raise 415 unless the body is declared as `application/json` or `application/*+json`."""
    declared = _header(scope, b"content-type")
    if declared == b"application/json":
        return
    if declared is None or JSON_TYPE.fullmatch(declared) is None:
        raise Refused("Expected request with `Content-Type: application/json`", status=415)


async def read_body(
    scope: Scope, receive: Receive, limit: int, seconds: float, grows: Grows | None = None
) -> bytes:
    """Return the body, and note how much came of it; `grows` is told what has come so far, and may raise.

    Raises 413 as soon as it is known to be longer than `limit` bytes, 415 for one that is compressed, and 408
    if it isn't there in so many `seconds`.
    """
    _refuse_encoded(scope)
    declared = _header(scope, b"content-length")
    if declared is not None and (not declared.isdigit() or len(declared) > 18 or int(declared) > limit):
        raise too_large(limit)
    reading = _read(exchange_of(scope), receive, limit, grows)
    try:
        waiting = reading.send(None)
    except StopIteration as end:  # it was there, as nearly always: a timer would cost as much as all of this
        whole: bytes = end.value
        return whole
    try:
        async with asyncio.timeout(seconds):
            return await _resume(reading, waiting)
    except TimeoutError:
        raise _too_slow(seconds) from None


def parse_json(raw: bytes) -> Any:
    """Parse strict JSON in UTF-8: no NaN, no infinity, no lone surrogate; raise 400 with the position.

    A member that stands twice in an object is refused with 422, as by TGI: one of them would be passed over.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(f"Failed to parse the request body as JSON: {_why(raw, error)}", status=400) from None
    _refuse_repeated(raw, body)
    return body


def _why(raw: bytes, error: orjson.JSONDecodeError) -> str:
    """Return what is wrong with a body; the library tells no place of bytes that aren't UTF-8."""
    if not raw:
        return "EOF while parsing a value at line 1 column 0"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        before, wrong = raw[: fault.start], raw[fault.start]
        line, column = before.count(b"\n") + 1, fault.start - before.rfind(b"\n")
        return f"not UTF-8: {fault.reason}, 0x{wrong:02x}: line {line} column {column} (char {fault.start})"
    return str(error)


def _refuse_repeated(raw: bytes, body: Any) -> None:
    """Raise 422 if there are more names in `raw` than members in what it was parsed to."""
    alone = isinstance(body, dict) and raw.count(b"{") == 1  # a long list of ids isn't gone through
    members = len(body) if alone else _members(body)
    # Where strings begin and end, what looks like the end of a name may stand, too: never too few are found
    if len(NAME_END.findall(raw)) == members or len(NAME_END.findall(STRING.sub(b'"', raw))) == members:
        return
    raise Refused(
        f"Failed to deserialize the JSON body into the target type: duplicate field `{_repeated(raw)}`: "
        "an object has it twice; send it once"
    )


def _members(value: Any) -> int:
    """Return how many members all objects in a value have."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        if type(each) is dict:
            count += len(each)
            left += [item for item in each.values() if type(item) in CONTAINERS]
        elif type(each) is list:
            left += [item for item in each if type(item) in CONTAINERS]
    return count


def _repeated(raw: bytes) -> str:
    """Return a name that an object of a JSON text has twice, or dots where it is nested too deeply."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.append(name)
            seen.add(name)

    with suppress(RecursionError):
        json.loads(raw, object_pairs_hook=look)
    return found[0] if found else "..."


async def _read(exchange: Exchange, receive: Receive, limit: int, grows: Grows | None) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        exchange.received_bytes = size
        if size > limit:
            raise too_large(limit)
        if grows is not None:
            grows(size)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


@coroutine
def _resume(begun: Coroutine[Any, Any, bytes], waiting: Any) -> Generator[Any, Any, bytes]:
    """Go on with a coroutine that was begun by hand, and has said what it waits for."""
    try:
        while True:
            try:
                yield waiting
            except BaseException as error:  # as by `await`: it is told of what is thrown at whoever waits
                waiting = begun.throw(error)
            else:
                waiting = begun.send(None)
    except StopIteration as end:
        whole: bytes = end.value
        return whole


def too_large(limit: int) -> Refused:
    """Return what is raised for a body that is longer than so many bytes."""
    return Refused(
        f"Failed to buffer the request body: length limit exceeded: it must have <= {limit} bytes. Send "
        "less, or start the server with a larger --payload-limit (with images, --image-payload-limit)",
        status=413,
    )


def _too_slow(seconds: float) -> Refused:
    return Refused(
        f"The request body took longer than {seconds:g} s (`body_timeout`): send it faster, or less of it",
        status=408,
        error_type="timeout",
        headers={"connection": "close"},  # what is yet to come would be read as the next request
    )


def _refuse_encoded(scope: Scope) -> None:
    """Raise 415 for a compressed body: a few bytes of it could be gigabytes."""
    encoding = _header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise Refused(
            "Expected a request without `Content-Encoding`: compressed bodies aren't read, send it as it is",
            status=415,
        )


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
