"""States of beginnings of texts, so that others which begin alike needn't read them again.

Layers that keep a state can't go on from blocks of keys and values alone: a text begins with known blocks as
far as there is a state of all that is in them. Each is known by the digest of the last block that it read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """A state to be copied before the next step: of a sequence that has read so many tokens."""

    slot: int
    place: int  # among those that aren't a sequence's
    tokens: int
    keeps: bool  # from the sequence to the place; false: the other way round


class Beginning:
    """Which states of one text are kept."""

    def __init__(self) -> None:
        self.cuts: set[int] = set()  # the lengths at which one is to be kept, so that pieces end there
        self.kept: list[bytes] = []  # digests of those that were
        self.newest: bytes | None = None  # of these, the one that a later one takes the place of


class Snapshots:
    """Places for states, of which the one that was asked for least recently goes first."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._free: list[int] = []
        self._known: OrderedDict[bytes, int] = OrderedDict()  # longest unused first
        self.clear()

    def clear(self) -> None:
        """Forget all states."""
        self._free = list(range(self._places))
        self._known.clear()

    def find(self, digests: Sequence[bytes]) -> int:
        """Return how many of a text's first blocks the longest state that is known has read."""
        known = (count for count in range(len(digests), 0, -1) if digests[count - 1] in self._known)
        return next(known, 0)

    def use(self, digest: bytes) -> int:
        """Return where a known state is."""
        self._known.move_to_end(digest)
        return self._known[digest]

    def keep(self, digest: bytes) -> int | None:
        """Return where a state is to be put that is known from now on; None if it was before."""
        if digest in self._known:
            self._known.move_to_end(digest)
            return None
        place = self._free.pop() if self._free else self._known.popitem(last=False)[1]
        self._known[digest] = place
        return place

    def forget(self, digest: bytes) -> None:
        """Have a state known no more; it may be so already."""
        place = self._known.pop(digest, None)
        if place is not None:
            self._free.append(place)

    def check(self) -> list[str]:
        """Return what is wrong with the places."""
        places = sorted([*self._free, *self._known.values()])
        return [] if places == list(range(self._places)) else [f"{self._places} states have {places}"]
