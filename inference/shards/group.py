"""The processes that have a share each of a model, as one of them sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.native_exchange import AddUp
from inference.models.share import Share
from inference.sequences.faults import EngineLost
from inference.sequences.state import Integers

AddsUp = AddUp | Callable[[NDArray[np.float32]], None]


class ShardLost(EngineLost):
    """Another process that has a share of the model is gone: nothing can be computed any more."""


class Group(ABC):
    """What shards do together, all of them the same in the same order; used by one thread at a time."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.lost: ShardLost | None = None  # why nothing can be computed any more

    @property
    @abstractmethod
    def adds_up(self) -> AddsUp:
        """Return what adds numbers up over all shards, in place and in the order of ranks."""

    @abstractmethod
    def join(self, values: Tensor) -> Tensor:
        """Return (count, *shape) of the values that each has, of one shape; raise ShardLost."""

    @abstractmethod
    def collect(self, values: Tensor) -> Tensor | None:
        """Return the same in the first shard, None in the others; raise ShardLost."""

    @abstractmethod
    def tell(self, words: Integers) -> None:
        """Send words (n,) from the first shard to the others, into theirs; raise ShardLost."""

    def serve(self) -> None:
        """Begin to serve: from now on others that are late are lost."""
        return

    @abstractmethod
    def leave(self) -> None:
        """Have whoever waits for another shard, now or later, hear that it is lost; from any thread."""

    def lose(self, error: Exception) -> ShardLost:
        """Return why nothing can be computed any more: the first reason, if there are several."""
        if self.lost is None:
            said = f"a shard of the model has failed: {type(error).__name__}: {error}"
            self.lost = error if isinstance(error, ShardLost) else ShardLost(said)
        return self.lost
