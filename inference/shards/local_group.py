"""Shards on one machine, which tell each other by memory that they share."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from torch import Tensor

from inference.kernels.native import Library
from inference.kernels.native_exchange import PART_BYTES, Bytes, NativeExchange
from inference.models.share import Share
from inference.sequences.state import Integers
from inference.shards.group import AddsUp, Group, ShardLost

_NOTHING: Bytes = np.empty(0, dtype=np.uint8)


class LocalGroup(Group):
    """Implements `Group` by the C extension's exchange, where a turn takes microseconds."""

    def __init__(self, library: Library, memory: mmap.mmap, share: Share) -> None:
        """`memory` is that of all, of `memory_bytes`."""
        super().__init__(share)
        self._exchange = NativeExchange(library, memory, share.rank, share.count)

    @property
    def adds_up(self) -> AddsUp:
        """Return what adds numbers up over all shards."""
        return self._exchange.add_up

    def join(self, values: Tensor) -> Tensor:
        """Return (count, *shape) of the values that each has, of one shape; raise ShardLost."""
        found = torch.empty(self.share.count, *values.shape, dtype=values.dtype)
        self._turns(_bytes(values), found)
        return found

    def collect(self, values: Tensor) -> Tensor | None:
        """Return the same in the first shard, None in the others; raise ShardLost."""
        if not self.share.rank:
            return self.join(values)
        self._turns(_bytes(values), None)
        return None

    def tell(self, words: Integers) -> None:
        """Send words (n,) from the first shard to the others, into theirs; raise ShardLost."""
        whole = words.view(np.uint8)
        for first in range(0, len(whole), self._exchange.size):
            part = whole[first : first + self._exchange.size]
            if self.share.rank:
                part[:] = self._turn(_NOTHING)[0][: len(part)]
            else:
                self._turn(part)

    def leave(self) -> None:
        """Have whoever waits for another shard, now or later, hear that it is lost; from any thread."""
        self._exchange.leave()

    def _turns(self, own: Bytes, found: Tensor | None) -> None:
        """Leave bytes, as many turns as it takes, and keep what all have left."""
        rows = None if found is None else found.view(self.share.count, -1).view(torch.uint8).numpy()
        for first in range(0, len(own), self._exchange.size):
            part = own[first : first + self._exchange.size]
            for rank, others in enumerate(self._turn(part)):
                if rows is not None:
                    rows[rank, first : first + len(part)] = others[: len(part)]

    def _turn(self, own: Bytes) -> list[Bytes]:
        if self.lost is not None:
            raise self.lost
        try:
            return self._exchange.turn(own)
        except EOFError:
            raise self.lose(ShardLost("another shard of the model was lost")) from None


def memory_bytes(count: int) -> int:
    """Return how much memory so many shards share; what isn't used takes none."""
    return 2 * count * PART_BYTES + (count + 2) * mmap.PAGESIZE


def mapped(descriptor: int) -> mmap.mmap:
    """Return the memory behind a descriptor."""
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def _bytes(values: Tensor) -> Bytes:
    found: Bytes = values.contiguous().view(-1).view(torch.uint8).numpy()
    return found
