"""The places of states: which of them has which sequence's, and after how many tokens.

A step that fails is computed again. So each sequence has two places: what a step reads is in one of them, and
what it makes is written to the other. Behind those of all sequences are the places of beginnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from inference.kv_cache.snapshots import Move
from inference.sequences.state import Integers, Pieces, SlotTable

NOTHING = -1  # is in that place, or in none


class Holder(Protocol):
    """What has the states of one layer."""

    @property
    def places(self) -> Iterable[Tensor]:
        """Return what has them, places first."""

    def allocate(self, places: int) -> None:
        """Have so many places, which take memory as they are written to."""


@dataclass(frozen=True, slots=True)
class StepPlaces:
    """Where a step's pieces end, and the places of their states."""

    ends: Integers
    reads: Integers  # NOTHING: nothing was read of the sequence
    writes: Integers


class StatePlaces:
    """The places of all sequences' states, the same in each layer."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = holders
        self._held = np.empty((0, 2), dtype=np.int64)  # by slot and place: how many tokens its state has read

    def begin(self, pieces: Pieces) -> StepPlaces:
        """Return a step's places; what is to be copied before it is copied."""
        self._allocate(pieces.table)
        while pieces.table.moves:
            self._move(pieces.table.moves[0])
            del pieces.table.moves[0]
        ends = np.cumsum(pieces.stops - pieces.starts)
        return StepPlaces(ends, *self._places(pieces.slots, pieces.starts, pieces.stops))

    def _allocate(self, table: SlotTable) -> None:
        slots = len(table.lengths)
        if len(self._held) < slots:
            for holder in self._holders:
                holder.allocate(2 * slots + table.snapshots)
            self._held = np.full((slots, 2), NOTHING, dtype=np.int64)  # only now: memory may be short

    def _move(self, move: Move) -> None:
        """Copy a state to where it is kept, or from there to a sequence."""
        held, other = self._held[move.slot], 2 * len(self._held) + move.place
        if move.keeps:
            found = (held == move.tokens).nonzero()[0].tolist()
            if not found:
                raise RuntimeError("a state is to be kept that isn't there")
            source, target = 2 * move.slot + found[0], other
        else:
            source, target = other, 2 * move.slot
            held[:] = move.tokens, NOTHING
        for holder in self._holders:
            for places in holder.places:
                places[target] = places[source]

    def _places(self, slots: Integers, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Return where each sequence's state is, and where its next one comes, which is noted."""
        self._held[slots[starts == 0]] = NOTHING
        found = self._held[slots] == starts[:, None]
        if not found.any(1)[starts > 0].all():
            raise RuntimeError("a sequence goes on from where it has no state")
        read = found.argmax(1)
        self._held[slots, 1 - read] = stops
        return np.where(starts > 0, 2 * slots + read, NOTHING), 2 * slots + 1 - read
