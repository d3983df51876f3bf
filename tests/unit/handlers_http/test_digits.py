"""Integers of more than 64 bits keep their digits where a body is told of."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from handlers.http.body import parse_json
from handlers.http.digits import to_fragment, with_digits
from handlers.http.errors import Refused

BORDERS = (2**64 - 1, 2**64, 2**63, -(2**63), -(2**63) - 1, 10**19, -(10**19), 10**25)


@given(some.integers(-(2**70), 2**70) | some.sampled_from(BORDERS))
def test_every_integer_is_told_as_it_was_sent_and_read_as_the_parser_reads_it(number: int) -> None:
    raw = b'{"a": [%d]}' % number
    body = with_digits(orjson.loads(raw), raw)
    assert body == orjson.loads(raw)
    assert type(body["a"][0]) is int or type(orjson.loads(raw)["a"][0]) is float
    assert orjson.dumps(body["a"], default=to_fragment) == b"[%d]" % number


@pytest.mark.parametrize(("digits", "more"), [(39, ""), (40, "…"), (308, "…")])
def test_of_very_long_ones_the_beginning_is_told(digits: int, more: str) -> None:
    raw = b"-" + b"7" * digits
    told = orjson.dumps(with_digits(orjson.loads(raw), raw), default=to_fragment).decode()
    assert told == "-" + "7" * 39 + more


def test_longer_ones_than_python_would_read_are_refused_before() -> None:
    with pytest.raises(Refused, match="number is infinity") as refused:
        parse_json(b"1" * 310)
    assert refused.value.status == 400


@pytest.mark.parametrize("raw", [b"[1, 2.5, 1e300]", b"[" * 1000 + b"9" * 20 + b"]" * 1000])
def test_what_has_none_or_is_too_deep_is_the_same_body(raw: bytes) -> None:
    body = orjson.loads(raw)
    assert with_digits(body, raw) is body
