"""Integers of more than 64 bits: they are read as floats, and told with the digits that were sent."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

LONG = re.compile(rb"\d{19}")  # all others fit into 64 bits
SHOWN = 40  # digits, of however many


class LongInteger(float):
    """The float as which such an integer is read."""

    def __new__(cls, digits: str) -> LongInteger:
        """`digits` are as they were sent, with a sign."""
        return super().__new__(cls, digits)

    def __init__(self, digits: str) -> None:
        self.digits = digits if len(digits) <= SHOWN else digits[:SHOWN] + "…"


def with_digits(body: Any, raw: bytes) -> Any:
    """Return a body as `raw` has it, its long integers with their digits; `body` itself if it has none."""
    if LONG.search(raw) is None:
        return body
    try:
        return json.loads(raw, parse_int=_integer)
    except RecursionError:  # it is nested too deeply for anything but the parser that `body` comes from
        return body


def to_fragment(value: LongInteger) -> orjson.Fragment:
    """Return what orjson writes in such an integer's place."""
    return orjson.Fragment(value.digits)


def _integer(digits: str) -> int | LongInteger:
    number = int(digits)  # of 309 digits at most: longer ones the parser that `body` comes from refuses
    return number if -(2**63) <= number < 2**64 else LongInteger(digits)
