"""Shards on several machines, which tell each other by torch.distributed (Gloo)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import BroadcastOptions, GatherOptions, PrefixStore, ProcessGroupGloo, Store, Work

from inference.models.share import Share
from inference.sequences.state import Integers
from inference.shards.group import AddsUp, Group, ShardLost

_MEET = timedelta(seconds=60)  # for the first shard, which comes when all others are about to
_EVER = timedelta(days=3650)  # Gloo's own limit: how long is waited is decided here
_LOOK = timedelta(milliseconds=500)  # between looks at whether there is still something to wait for
_LATE_SECONDS = 20.0  # that another shard may be behind in a step


class NetGroup(Group):
    """Implements `Group` by Gloo's collectives, each of which takes a quarter of a millisecond or more."""

    def __init__(self, store: Store, share: Share, address: str) -> None:
        """Meet the others by a store; `address`: of this machine, at which they reach this process.

        The first shard comes last. The others wait for it however long other machines take to find the model.
        """
        super().__init__(share)
        options = ProcessGroupGloo._Options()
        options._timeout = _EVER if share.rank else _MEET
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        try:
            self._group = ProcessGroupGloo(PrefixStore("shards", store), share.rank, share.count, options)
        except RuntimeError as error:
            raise self._lose(error) from error
        self._group._set_default_timeout(_EVER)
        self._late: float | None = None  # seconds; None: others may be as late as they like
        self._left = False
        self._parts = torch.empty(0)
        self._from_first = BroadcastOptions()
        self._from_first.rootRank = 0

    @property
    def adds_up(self) -> AddsUp:
        """Return what adds numbers up over all shards."""
        return self._add_up

    def serve(self) -> None:
        """Wait no longer for others than a step may take; before, they may read a model from a slow disk."""
        self._late = _LATE_SECONDS

    def join(self, values: Tensor) -> Tensor:
        """Return (count, *shape) of the values that each has, of one shape; raise ShardLost."""
        return self._gathered(values.contiguous().view(-1)).view(self.share.count, *values.shape).clone()

    def collect(self, values: Tensor) -> Tensor | None:
        """Return the same in the first shard, None in the others; raise ShardLost."""
        options = GatherOptions()
        options.rootRank = 0
        values = values.contiguous()
        if self.share.rank:
            self._do(lambda: self._group.gather([], [values], options))
            return None
        found = torch.empty(self.share.count, *values.shape, dtype=values.dtype)
        self._do(lambda: self._group.gather([list(found)], [values], options))
        return found

    def tell(self, words: Integers) -> None:
        """Send words (n,) from the first shard to the others, into theirs; raise ShardLost.

        The others wait for them for as long as nobody asks the first one for anything.
        """
        tensor = torch.from_numpy(words)
        self._do(lambda: self._group.broadcast([tensor], self._from_first), ever=bool(self.share.rank))

    def leave(self) -> None:
        """Have whoever waits for another shard, now or later, hear that it is lost; from any thread."""
        self._left = True

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
        self._do(lambda: self._group._allgather_base(parts, values))
        return parts.view(self.share.count, len(values))

    def _do(self, begin: Callable[[], Work], *, ever: bool = False) -> None:
        """Do something together and wait for its end; raise ShardLost. `ever`: however late others are."""
        if self.lost is not None:
            raise self.lost
        began = time.monotonic()
        try:
            work = begin()
        except RuntimeError as error:
            raise self._lose(error) from error
        while True:
            over = work.is_completed()  # asked before: what ends just after a look was over is no failure
            try:
                work.wait(_LOOK)
                return
            except RuntimeError as error:
                if over or self._left:
                    raise self._lose(error) from error
                if not ever and self._late is not None and time.monotonic() - began > self._late:
                    told = f"another shard of the model is more than {self._late:g} s late"
                    raise self.lose(ShardLost(told)) from error

    def _lose(self, error: RuntimeError) -> ShardLost:
        lines = str(error).splitlines() or [type(error).__name__]
        return self.lose(ShardLost(f"another shard of the model was lost: {lines[0][:300]}"))
