"""The tokens of a text with their places, kept small: a text of 2 MB can have two million."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy
from numpy.typing import NDArray
from tokenizers import Encoding

from inference.types import TextToken

SLICE = 4096  # tokens made at a time
CONTINUES, MASK = 0x80, 0xC0  # of the bytes of a character that aren't its first
Numbers = NDArray[numpy.integer[Any]]


class PlacedTokens(Sequence[TextToken]):
    """The tokens of a text, each made when it is looked at; kept are the text and some 20 bytes for each."""

    __slots__ = ("_data", "_ids", "_places", "_special")

    def __init__(self, data: bytes, ids: Numbers, places: Numbers, special: NDArray[numpy.bool_]) -> None:
        """`data` is the text in UTF-8, `places` (tokens, 2) where each token begins and ends in it."""
        self._data = data
        self._ids = ids  # (tokens,)
        self._places = places
        self._special = special  # (tokens,)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> TextToken: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[TextToken, ...]: ...

    def __getitem__(self, at: int | slice) -> TextToken | tuple[TextToken, ...]:
        if isinstance(at, slice):
            return self._made(at)
        place = range(len(self))[at]
        return self._made(slice(place, place + 1))[0]

    def __iter__(self) -> Iterator[TextToken]:
        for start in range(0, len(self), SLICE):
            yield from self._made(slice(start, start + SLICE))

    def _made(self, at: slice) -> tuple[TextToken, ...]:
        ids, places, special = (column[at].tolist() for column in (self._ids, self._places, self._special))
        return tuple(
            TextToken(token_id, self._data[start:stop].decode("utf-8", "replace"), start, stop, is_special)
            for token_id, (start, stop), is_special in zip(ids, places, special, strict=True)
        )


def placed_tokens(text: str, encoding: Encoding, special_ids: frozenset[int]) -> PlacedTokens:
    """Return an encoding's tokens with UTF-8 byte offsets; the library counts characters."""
    data = text.encode()
    # One by one, since `Encoding.offsets` makes all of them without letting go of the interpreter
    spans = map(encoding.token_to_chars, range(len(encoding)))
    flat = array("Q", chain.from_iterable(span or (0, 0) for span in spans))  # None: added to the text
    places: Numbers = numpy.array(flat, numpy.uint32).reshape(-1, 2)
    if len(data) != len(text):
        places = first_bytes(data)[places]
    ids = column(encoding.ids)
    special = numpy.isin(ids, numpy.array(sorted(special_ids), numpy.uint32))
    special |= column(encoding.special_tokens_mask) > 0
    return PlacedTokens(data, ids, places, special)


def column(numbers: list[int]) -> NDArray[numpy.uint32]:
    """Return numbers as an array; a slice at a time, to let go of the interpreter in between."""
    made = numpy.empty(len(numbers), numpy.uint32)
    for start in range(0, len(numbers), SLICE):
        made[start : start + SLICE] = numbers[start : start + SLICE]
    return made


def first_bytes(data: bytes) -> Numbers:
    """Return where each character of a text in UTF-8 begins, and where the text ends."""
    raw = numpy.frombuffer(data, numpy.uint8)
    begins = numpy.flatnonzero((raw & MASK) != CONTINUES)
    return numpy.append(begins, len(data)).astype(numpy.uint32)
