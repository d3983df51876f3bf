"""Reading a body: at once, in pieces, too late, or by somebody who is cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from handlers.http.body import parse_json, read_body
from handlers.http.errors import ClientDisconnected, Refused
from handlers.http.exchange import Exchange, attach, exchange_of

SCOPE: dict[str, Any] = {"type": "http", "headers": []}
attach(SCOPE, Exchange("id", 0.0))
Receive = Callable[[], Awaitable[Any]]


def coming(*pieces: bytes | float | None) -> Receive:
    """Give pieces of a body; a number is a wait before the next, None the client's leaving."""
    left = list(pieces)

    async def receive() -> Any:
        piece = left.pop(0)
        if isinstance(piece, float):
            await asyncio.sleep(piece)
            piece = left.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    return receive


def read(*pieces: bytes | float | None, limit: int = 100, seconds: float = 20.0) -> bytes:
    return asyncio.run(read_body(SCOPE, coming(*pieces), limit, seconds))


@pytest.mark.parametrize(
    "pieces", [(b"abc",), (b"a", b"bc"), (0.0, b"abc"), (b"a", 0.0, b"b", 0.001, b"c"), (b"abc", b"")]
)
def test_a_body_is_put_together_however_it_comes(pieces: tuple[bytes | float, ...]) -> None:
    assert read(*pieces) == b"abc"


@pytest.mark.parametrize("pieces", [(b"abcd",), (b"abc", b"d"), (b"a", 0.0, b"bcd")])
def test_a_body_over_the_limit_is_refused_wherever_it_is_found_out(pieces: tuple[bytes | float, ...]) -> None:
    with pytest.raises(Refused) as refused:
        read(*pieces, limit=3)
    assert refused.value.status == 413


@pytest.mark.parametrize("pieces", [(None,), (b"a", None), (0.0, None), (b"a", 0.0, None)])
def test_a_client_that_leaves_is_nobody_to_answer(pieces: tuple[bytes | float | None, ...]) -> None:
    with pytest.raises(ClientDisconnected):
        read(*pieces)


@pytest.mark.parametrize(("come", "pieces"), [(0, (60.0, b"abc")), (1, (b"a", 60.0, b"bc"))])
def test_a_body_that_is_late_is_refused_and_what_came_of_it_is_noted(
    come: int, pieces: tuple[bytes | float, ...]
) -> None:
    attach(SCOPE, Exchange("id", 0.0))
    with pytest.raises(Refused) as refused:
        read(*pieces, seconds=0.01)
    assert (refused.value.status, refused.value.error_type) == (408, "timeout")
    assert exchange_of(SCOPE).received_bytes == come


def test_whoever_reads_can_be_cancelled_and_the_source_learns_of_it() -> None:
    told: list[str] = []

    async def receive() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def check() -> None:
        task = asyncio.create_task(read_body(SCOPE, receive, 100, 20.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(check())
    assert told == ["cancelled"]


def test_a_source_that_breaks_after_a_wait_is_heard_of() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(read_body(SCOPE, receive, 100, 20.0))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"max_tokens": 2, "max_tokens": 5}', "max_tokens"),
        ('{"a":1,"a":1}', "a"),
        ('{"a" :1,"a":2}', "a"),
        ('{"a": [{"b": 1, "c" : {"d": "x", "d"\n: "y"}}]}', "d"),
        (r'{"a\u0061": 1, "aa": 2}', "aa"),
        (r'{"a": "\":", "b": 1, "b": 2}', "b"),
        ('{"": 1, "": 2}', ""),
        ('{"z": 1, "y": 1, "x": 1, "w": 1, "y": 2, "x": 2, "w": 2, "z": 2}', "y"),
    ],
)
def test_a_member_that_stands_twice_is_refused_with_its_name(body: str, name: str) -> None:
    with pytest.raises(Refused, match=f"duplicate field `{name}`") as refused:
        parse_json(body.encode())
    assert refused.value.status == 422


def test_a_member_that_stands_twice_is_refused_however_deeply() -> None:
    with pytest.raises(Refused, match="duplicate field"):
        parse_json(b'{"a":1,"a":' * 1020 + b"1" + b"}" * 1020)


def test_of_very_many_members_the_first_that_comes_again_is_named() -> None:
    names = [f"n{at}" for at in range(100_000)]
    raw = json.dumps(dict.fromkeys(names, 1))[:-1] + ', "n777": 2, "n5": 2, "n99999": 2}'
    with pytest.raises(Refused, match="duplicate field `n777`"):
        parse_json(raw.encode())


TEXTS = some.text('":\\{ab', max_size=3)
JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-5, 5) | some.text('":\\{} ,\n', max_size=8),
    lambda parts: some.lists(parts, max_size=3) | some.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=12,
)


WRITTEN: list[dict[str, Any]] = [
    {},
    {"indent": 1},
    {"separators": (",", ":")},
    {"separators": (" , ", "\n: ")},
    {"ensure_ascii": False},
]


@given(JSON, some.sampled_from(WRITTEN))
def test_what_no_object_has_twice_is_read_whatever_its_texts_look_like(
    value: Any, how: dict[str, Any]
) -> None:
    assert parse_json(json.dumps(value, **how).encode()) == value


@given(some.lists(some.dictionaries(TEXTS, JSON, min_size=1, max_size=3), max_size=3), some.data())
def test_whatever_stands_twice_is_refused(objects: list[Any], data: some.DataObject) -> None:
    """An object is written so that one of its members comes once more, with any space around its name."""
    first = data.draw(some.dictionaries(TEXTS, JSON, min_size=1, max_size=3))
    name = data.draw(some.sampled_from(sorted(first)))
    spaces = data.draw(some.tuples(*[some.sampled_from(["", " ", "\n\t"])] * 2))
    again = f"{json.dumps(name)}{spaces[0]}:{spaces[1]}{json.dumps(data.draw(JSON))}"
    raw = f"[{json.dumps(first)[:-1]}, {again}}}, {json.dumps(objects)}]"
    with pytest.raises(Refused, match="duplicate field"):
        parse_json(raw.encode())
