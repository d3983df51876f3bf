"""What the first shard tells the others: which step comes next, as one row of integers.

A short one is one message of WORDS integers; what a longer one has besides is a second. Of the sequences'
pages those go along that have changed since they were told last.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.kv_cache.blocks import blocks_for
from inference.sequences.state import Integers, Pieces, SlotTable
from inference.shards.group import Group

WORDS = 512
Columns = tuple[NDArray[Any], ...]  # of integers
_SIZES = 8  # integers before the others: how many of each there are


class Kind(IntEnum):
    """What is to be done."""

    STEP = 0
    IDLE = 1  # memory is to be made ready


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One message, read."""

    kind: Kind
    number: int = 0  # IDLE: the cache's high water
    pieces: Pieces | None = None  # STEP
    tokens_only: bool = False


class Teller:
    """The first shard's end."""

    def __init__(self, group: Group, slots: int, pages: int) -> None:
        self._group = group
        self._blocks = np.zeros((slots, pages), dtype=np.int32)  # as they were told last
        self._words = np.zeros(WORDS, dtype=np.int64)

    def step(self, pieces: Pieces, *, tokens_only: bool) -> None:
        """Have a step computed; raise ShardLost."""
        slots, changed = pieces.slots, self._changed(pieces)
        adapters = pieces.table.adapters[slots]
        columns: Columns = (slots, pieces.starts, pieces.stops, adapters, pieces.ids, pieces.rows, *changed)
        sizes = (len(slots), len(pieces.ids), len(pieces.rows), len(changed[0]))
        self._send((Kind.STEP, *sizes, int(tokens_only)), columns)

    def idle(self, high_water: int) -> None:
        """Have a little made ready for later steps; raise ShardLost."""
        self._send((Kind.IDLE, high_water))

    def _send(self, sizes: tuple[int, ...], columns: Columns = ()) -> None:
        total = _SIZES + sum(map(len, columns))
        words = self._words if total <= WORDS else np.zeros(total, dtype=np.int64)
        words[: 1 + len(sizes)] = (total, *sizes)
        if columns:
            np.concatenate(columns, out=words[_SIZES:total])
        self._group.tell(words[:WORDS])
        if total > WORDS:
            self._group.tell(words[WORDS:])

    def _changed(self, pieces: Pieces) -> Columns:
        """Return slots, pages and blocks of what the step's sequences have otherwise than was told."""
        if not len(pieces.slots):
            return (np.empty(0, dtype=np.int64),) * 3
        pages = blocks_for(int(pieces.stops.max()))
        now = pieces.table.blocks[pieces.slots, :pages]
        rows, places = np.nonzero(now != self._blocks[pieces.slots, :pages])
        slots, blocks = pieces.slots[rows], now[rows, places]
        self._blocks[slots, places] = blocks
        return slots, places, blocks


class Listener:
    """Another shard's end."""

    def __init__(self, group: Group, slots: int, pages: int) -> None:
        self._group = group
        self._table = SlotTable(slots, pages)
        self._words = np.empty(WORDS, dtype=np.int64)

    def receive(self) -> Told:
        """Wait for a message; raise ShardLost."""
        self._group.tell(self._words)
        total, kind, number = (int(each) for each in self._words[:3])
        if kind != Kind.STEP:
            return Told(Kind(kind), number)
        words = self._words
        if total > WORDS:
            words = np.empty(total, dtype=np.int64)
            words[:WORDS] = self._words
            self._group.tell(words[WORDS:])
        return Told(Kind.STEP, pieces=self._pieces(words), tokens_only=bool(words[6]))

    def _pieces(self, words: Integers) -> Pieces:
        count, tokens, rows, changed = (int(each) for each in words[2:6])
        sizes = (count, count, count, count, tokens, rows, changed, changed, changed)
        ends = _SIZES + np.cumsum(sizes)
        # A copy each: the memory that words came in is the next ones'
        columns = [words[end - size : end].copy() for end, size in zip(ends, sizes, strict=True)]
        slots, starts, stops, adapters, ids, wanted, at, pages, blocks = columns
        table = self._table
        table.blocks[at, pages] = blocks
        table.adapters[slots] = adapters
        lengths = stops - starts
        positions = np.arange(tokens) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        return Pieces(table, (), (), slots, starts, stops, ids, positions, wanted)
