"""The forward pass of a step of which this process computes a share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.cpu.stack import FusedRunner
from inference.kernels.native import Library
from inference.sampling.rows import Statistics, statistics
from inference.sequences.state import Pieces
from inference.shards.group import Group


class SharedRunner:
    """Runs a step's pieces together with the other processes, each of which is given the same pieces."""

    def __init__(self, inner: FusedRunner, group: Group, vocabulary: int, library: Library) -> None:
        """`inner` gives logits of this share of the vocabulary, and behind the last share zeros."""
        self.arrays = inner.arrays
        self._inner = inner
        self._group = group
        self._vocabulary = vocabulary
        self._library = library
        self._to_all = True
        self._last: tuple[Tensor, Statistics] | None = None  # what `run` returned, if that is only tokens

    def serve(self) -> None:
        """Give logits to the first process alone from now on: to all they go while a model is proven."""
        self._to_all = False
        self._group.serve()

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits (rows, vocabulary) in float32, where they go; raise ShardLost.

        With `tokens_only` they mean nothing: the likeliest tokens are what `statistics` says of them.
        """
        self._last = None
        try:
            own = self._inner.run(pieces)
        except Exception as error:  # wherever it stood, the others wait for it
            raise self._group.lose(error) from error
        if not len(own):
            return own.new_empty(0, self._vocabulary)
        if tokens_only and not self._to_all:
            self._last = own, self._likeliest(own)
            return own
        parts = self._group.join(own) if self._to_all else self._group.collect(own)
        if parts is None:
            return own
        return parts.transpose(0, 1).flatten(1)[:, : self._vocabulary].contiguous()

    def statistics(self, scores: Tensor) -> Statistics:
        """Return the statistics of scores (n, v), as far as is known of what `run` returned last."""
        if self._last is not None and scores is self._last[0]:
            return self._last[1]
        return statistics(scores, self._library)

    def _likeliest(self, own: Tensor) -> Statistics:
        """Return the likeliest tokens among all that the processes find in their shares."""
        columns = own.shape[1]
        first = self._group.share.rank * columns
        known = max(min(columns, self._vocabulary - first), 0)
        if known == columns:
            found = self._inner.statistics(own)
        elif known:
            found = statistics(own[:, :known].contiguous(), self._library)
        else:
            found = Statistics(
                np.zeros(len(own), dtype=np.int64), np.full(len(own), -np.inf), np.zeros(len(own))
            )
        told = np.stack([first + found.tokens, found.best])  # as float64, which hold ids exactly
        parts = self._group.collect(torch.from_numpy(told))
        if parts is None:
            return found
        tokens, best = parts.numpy().transpose(1, 0, 2)  # (count, rows) each
        at = best.argmax(0)[None]  # the first of equals; what isn't a number, above all
        tokens, best = (np.take_along_axis(each, at, 0)[0] for each in (tokens, best))
        return Statistics(tokens.astype(np.int64), best, best)
