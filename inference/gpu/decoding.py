"""A step of decodes from slots to slots: what is around the forward pass, by torch or by Triton's kernels.

Nothing in it waits for the device, and all that it reads and writes stays where it is: it can be
captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch, Draws, Sampled
from inference.gpu.slots import DeviceState
from inference.gpu.wishes import Wishes
from inference.kv_cache.blocks import PAGE


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """What the slots' rows say of a step in which n of them go on by a token."""

    ids: Tensor  # (n,) int64
    positions: Tensor  # (n,) int64
    places: Tensor  # (n,) int64; -1 for padding
    lengths: Tensor  # (n,) int32; 0 for padding
    draws: Draws

    def batch(
        self,
        state: DeviceState,
        slots: Tensor,
        starts: Tensor,
        query_blocks: Tensor,
        *,
        tile: int,
        splits: int,
    ) -> DeviceBatch:
        """Return the step of the slots (n,) int32; `starts` and `query_blocks` are of a token each."""
        return DeviceBatch(
            ids=self.ids,
            positions=self.positions,
            places=self.places,
            tables=state.tables,
            slots=slots,
            starts=starts,
            lengths=self.lengths,
            query_blocks=query_blocks,
            tile=tile,
            rows=None,
            longest=1,
            splits=splits,
            adapters=None if state.adapters is None else state.adapters[slots.long()],
        )


class Around(Protocol):
    """What is around the forward pass."""

    def begin(self, state: DeviceState, slots: Tensor) -> Begin:
        """Return what the slots (n,) int32 begin with."""

    def end(self, state: DeviceState, slots: Tensor, begun: Begin, sampled: Sampled, drawn: Tensor) -> None:
        """Make the sampled tokens the newest; write them and their log-probabilities to `drawn` (n, 2)."""

    def settle(self, state: DeviceState, wishes: Wishes, drawn: Tensor) -> None:
        """Make the tokens of `drawn` (n, 2) the newest in place of those that are, and count them."""


class TorchAround:
    """By torch, on any device."""

    def begin(self, state: DeviceState, slots: Tensor) -> Begin:
        """Return what the slots (n,) int32 begin with."""
        rows = slots.long()
        lengths = state.lengths[rows]
        positions = (lengths - 1).clamp(min=0).long()
        pages = state.tables[rows, positions // PAGE].long()
        places = torch.where(lengths > 0, pages * PAGE + positions % PAGE, -1)
        return Begin(state.tokens[rows], positions, places, lengths, state.draws(rows, lengths.long()))

    def end(self, state: DeviceState, slots: Tensor, begun: Begin, sampled: Sampled, drawn: Tensor) -> None:
        """Make the sampled tokens the newest; write them and their log-probabilities to `drawn` (n, 2)."""
        state.keep(slots.long(), begun.lengths, sampled.tokens)
        drawn[:, 0] = sampled.tokens
        drawn[:, 1] = sampled.logprobs

    def settle(self, state: DeviceState, wishes: Wishes, drawn: Tensor) -> None:
        """Make the tokens of `drawn` (n, 2) the newest in place of those that are, and count them."""
        assert state.wishes is not None, "somebody wishes something"
        slots, tokens = wishes.slots.long(), drawn[:, 0].long()
        state.tokens[slots] = tokens
        state.wishes.count(slots, tokens)  # last: what fails before may be computed again


class TritonAround:
    """By three kernels; raises ImportError when it is made without Triton."""

    def __init__(self) -> None:
        from inference.kernels.gpu import slots

        self._kernels = slots

    def begin(self, state: DeviceState, slots: Tensor) -> Begin:
        """Return what the slots (n,) int32 begin with."""
        found = self._kernels.gather(
            slots,
            state.tokens,
            state.lengths,
            state.tables,
            state.seeds,
            state.temperatures,
            state.warped,
            page=PAGE,
        )
        draws = Draws(found.seeds, found.counts, found.temperatures, found.warped)
        return Begin(found.ids, found.positions, found.places, found.lengths, draws)

    def end(self, state: DeviceState, slots: Tensor, begun: Begin, sampled: Sampled, drawn: Tensor) -> None:
        """Make the sampled tokens the newest; write them and their log-probabilities to `drawn` (n, 2)."""
        self._kernels.scatter(
            slots,
            begun.lengths,
            sampled.tokens,
            sampled.logprobs,
            state.tokens,
            state.previous,
            state.lengths,
            drawn,
        )

    def settle(self, state: DeviceState, wishes: Wishes, drawn: Tensor) -> None:
        """Make the tokens of `drawn` (n, 2) the newest in place of those that are, and count them."""
        self._kernels.settle(wishes.slots, drawn, wishes.lengths, state.tokens, wishes.table, wishes.marks)
