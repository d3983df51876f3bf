"""Shards on several machines, which tell each other by torch.distributed (Gloo)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import BroadcastOptions, GatherOptions, PrefixStore, ProcessGroupGloo, Store

from inference.shards.group import AddsUp, Group, ShardLost
from inference.shards.share import Share
from inference.state import Integers

# Shards wait for the next word of the first for as long as nobody asks for anything. Who has died closes its
# connections.
_WAIT = timedelta(days=3650)
_MEET = timedelta(seconds=60)
_STEP = timedelta(seconds=20)  # that a shard may be behind in a step
_Result = TypeVar("_Result")


class NetGroup(Group):
    """Implements `Group` by Gloo's collectives, each of which takes a quarter of a millisecond or more."""

    def __init__(self, store: Store, share: Share, address: str) -> None:
        """Meet the others by a store; `address`: of this machine, at which they reach this process."""
        super().__init__(share)
        options = ProcessGroupGloo._Options()
        options._timeout = _MEET
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        self._group = self._told(
            lambda: ProcessGroupGloo(PrefixStore("shards", store), share.rank, share.count, options)
        )
        self._group._set_default_timeout(_WAIT)
        self._parts = torch.empty(0)
        self._from_first = BroadcastOptions()
        self._from_first.rootRank = 0
        if share.rank:
            self._from_first.timeout = _WAIT

    @property
    def adds_up(self) -> AddsUp:
        """Return what adds numbers up over all shards."""
        return self._add_up

    def serve(self) -> None:
        """Wait no longer for others than a step may take; before, they may read a model from a slow disk."""
        self._group._set_default_timeout(_STEP)

    def join(self, values: Tensor) -> Tensor:
        """Return (count, *shape) of the values that each has, of one shape; raise ShardLost."""
        return self._gathered(values.contiguous().view(-1)).view(self.share.count, *values.shape).clone()

    def collect(self, values: Tensor) -> Tensor | None:
        """Return the same in the first shard, None in the others; raise ShardLost."""
        options = GatherOptions()
        options.rootRank = 0
        values = values.contiguous()
        if self.share.rank:
            self._told(lambda: self._group.gather([], [values], options).wait())
            return None
        found = torch.empty(self.share.count, *values.shape, dtype=values.dtype)
        self._told(lambda: self._group.gather([list(found)], [values], options).wait())
        return found

    def tell(self, words: Integers) -> None:
        """Send words (n,) from the first shard to the others, into theirs; raise ShardLost."""
        tensor = torch.from_numpy(words)
        self._told(lambda: self._group.broadcast([tensor], self._from_first).wait())

    def leave(self) -> None:
        """Nothing: who waits hears of a connection's end by itself."""

    def _add_up(self, values: NDArray[np.float32]) -> None:
        """Add to values (n,), in place, the others', in the order of ranks: all have the same bits."""
        own = torch.from_numpy(values)
        parts = self._gathered(own)
        torch.add(parts[0], parts[1], out=own)
        for part in parts[2:]:
            own += part

    def _gathered(self, values: Tensor) -> Tensor:
        """Return (count, n) of values (n,), until the next call."""
        size = self.share.count * len(values)
        if self._parts.dtype != values.dtype or len(self._parts) < size:
            self._parts = torch.empty(size, dtype=values.dtype)
        parts = self._parts[:size]
        self._told(lambda: self._group._allgather_base(parts, values).wait())
        return parts.view(self.share.count, len(values))

    def _told(self, act: Callable[[], _Result]) -> _Result:
        if self.lost is not None:
            raise self.lost
        try:
            return act()
        except RuntimeError as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise self.lose(ShardLost(f"another shard of the model was lost: {lines[0][:300]}")) from error
