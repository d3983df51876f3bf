"""A prompt's tokens as they are told: kept in columns, and made when they are gone through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from inference.prompt_tops import PromptTops, TopTokens
from inference.types import PromptToken, Token

Make = Callable[[TopTokens], tuple[Token, ...]]


class LikelyTokens(Sequence[Token]):
    """The likeliest tokens at one place."""

    __slots__ = ("_ids", "_logprobs", "_make")

    def __init__(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32], make: Make) -> None:
        """`make` makes tokens of ids and log-probabilities."""
        self._ids = ids
        self._logprobs = logprobs
        self._make = make

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> Token: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Token, ...]: ...

    def __getitem__(self, at: int | slice) -> Token | tuple[Token, ...]:
        if isinstance(at, slice):
            pairs = zip(self._ids[at].tolist(), self._logprobs[at].tolist(), strict=True)
            return self._make(tuple(pairs))
        return self._make(((int(self._ids[at]), float(self._logprobs[at])),))[0]

    def __iter__(self) -> Iterator[Token]:
        return iter(self[:])


class PromptTokens(Sequence[PromptToken]):
    """All tokens of a prompt with their log-probabilities, and the likeliest at their places, if any are."""

    __slots__ = ("_ids", "_logprobs", "_make", "_text_of", "_tops")

    def __init__(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: PromptTops | None,
        text_of: Callable[[int], str],
        make: Make,
    ) -> None:
        self._ids = ids
        self._logprobs = logprobs
        self._tops = tops
        self._text_of = text_of
        self._make = make

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> PromptToken: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PromptToken]: ...

    def __getitem__(self, at: int | slice) -> PromptToken | Sequence[PromptToken]:
        return tuple(self)[at]

    def __iter__(self) -> Iterator[PromptToken]:
        tops: Sequence[Sequence[Token]] = ((),) * len(self._ids)
        if self._tops is not None:
            tops = [LikelyTokens(*place, self._make) for place in self._tops.places()]
        return map(PromptToken, self._ids, map(self._text_of, self._ids), self._logprobs, tops)
