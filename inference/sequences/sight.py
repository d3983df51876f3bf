"""What a sequence sees: its images' rows, where they stand in its prompt, and the positions behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inference.kv_cache.blocks import PAGE

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]


class CannotSee(Exception):
    """A model's images can't be computed here; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """What a model makes of an image."""

    rows: Tensor  # (n, hidden), float32: what the first layer is given
    embedded: Tensor  # (n, hidden): what the language model is given; the same one, mostly
    layout: Mapping[str, Tensor]  # what positions depend on, by the model's own names

    @property
    def nbytes(self) -> int:
        """Return how much memory it takes."""
        several = {id(each): each for each in (self.rows, self.embedded)}
        return sum(each.numel() * each.element_size() for each in several.values())


class Sight:
    """The images of one prompt, which doesn't change."""

    def __init__(
        self,
        keys: Sequence[bytes],
        images: Sequence[ImageRows],
        places: Integers,
        positions: Integers | None = None,
        release: Callable[[], None] | None = None,
        *,
        two_way: bool = False,
    ) -> None:
        """Of each image there are its key, by which equal ones are known, and its rows.

        `places` are those of all rows in the prompt, rising.
        `positions` (3, prompt) are the rotary embedding's; None: they are those of the prompt's tokens.
        `release` is called when nobody needs them any more. `two_way`: rows that stand side by side see each
        other, those behind them too. Raises ValueError for other places than rows.
        """
        sizes = [len(each.rows) for each in images]
        if sum(sizes) != len(places):
            raise ValueError(
                f"{len(places)} of its tokens stand for images' rows, and there are {sum(sizes)}"
            )
        self._release = release
        self.places = places
        self.positions = positions
        self.shift = 0 if positions is None else int(positions.max()) + 1 - positions.shape[1]
        self._images = tuple(images)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._runs = _runs(places) if two_way else None
        self._salts = _salts(keys, self._starts, places, self._runs)

    @property
    def plain(self) -> bool:
        """Return whether the language model is given what the first layer is."""
        return all(each.embedded is each.rows for each in self._images)

    def close(self) -> None:
        """Let go of the images; called once."""
        if self._release is not None:
            self._release()

    def salt(self, block: int) -> bytes:
        """Return what tells a block of the prompt from one that has the same tokens and other images."""
        return self._salts.get(block, b"")

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """Return which of the rows, [first, last), stand in the positions [start, stop)."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        return first, last

    def rows(self, first: int, last: int, *, embedded: bool = False) -> list[Tensor]:
        """Return the rows [first, last) of all images one behind the other, in parts."""
        parts = []
        for start, image in zip(self._starts.tolist(), self._images, strict=False):
            whole = image.embedded if embedded else image.rows
            low, high = max(first - start, 0), min(last - start, len(whole))
            if low < high:
                parts.append(whole[low:high])
        return parts

    @property
    def two_way(self) -> bool:
        """Return whether rows see those behind them."""
        return self._runs is not None

    def whole(self, start: int, stop: int) -> int:
        """Return where a piece from `start` on ends that should end at `stop`, if it may cut no run of rows.

        That is before the run, or behind it if the piece begins within it.
        """
        if self._runs is None:
            return stop
        firsts, ends = self._runs
        run = int(np.searchsorted(firsts, stop)) - 1  # the last one that begins before `stop`
        if run < 0 or ends[run] <= stop:
            return stop
        return int(firsts[run] if firsts[run] > start else ends[run])

    def limits(self, start: int, stop: int) -> Integers:
        """Return the positions (stop - start,) from which on the tokens [start, stop) see nothing."""
        limits = np.arange(start + 1, stop + 1)
        for first, end in zip(*(self._runs or ((), ())), strict=True):
            if first < stop and end > start:
                limits[max(first - start, 0) : end - start] = end
        return limits

    def rotary(self, start: int, stop: int) -> Integers:
        """Return the rotary positions (3, stop - start) of the sequence's tokens [start, stop)."""
        assert self.positions is not None, "those of other models are the tokens' own"
        known = self.positions.shape[1]
        within = self.positions[:, start : min(stop, known)]
        behind = np.arange(max(start, known), stop) + self.shift
        return np.concatenate([within, np.broadcast_to(behind, (3, len(behind)))], axis=1)


def _runs(places: Integers) -> tuple[Integers, Integers]:
    """Return where places that follow each other begin, and end."""
    cuts = (np.diff(places) > 1).nonzero()[0]
    return places[np.concatenate([[0], cuts + 1])], places[np.concatenate([cuts, [len(places) - 1]])] + 1


def _salts(
    keys: Sequence[bytes], starts: Integers, places: Integers, runs: tuple[Integers, Integers] | None
) -> dict[int, bytes]:
    """Return what images each block has to do with: those within it, and those that they see in `runs`."""
    salts: dict[int, bytes] = {}
    for index, key in enumerate(keys):
        seen = places[starts[index] : starts[index + 1]]
        if runs is not None:
            firsts, ends = runs
            of_image = np.unique(np.searchsorted(firsts, seen, side="right")) - 1
            seen = np.concatenate([np.arange(firsts[run], ends[run]) for run in of_image])
        for block in dict.fromkeys((seen // PAGE).tolist()):
            salts[block] = salts.get(block, b"") + key
    return salts
