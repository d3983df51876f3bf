"""A model on a device behind one call, whatever level computes it."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol

import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.gpu.ops import Ops
from inference.gpu.packing import pack_batch
from inference.gpu.states import DeviceStates
from inference.sequences.state import Pieces


class DeviceModel(Protocol):
    """Weights, a cache, and the forward pass over both."""

    @property
    def ops(self) -> Ops:
        """Return what computes it."""

    @property
    def device(self) -> torch.device:
        """Return where it is."""

    @property
    def dtype(self) -> torch.dtype:
        """Return what it computes in."""

    @property
    def adapts(self) -> bool:
        """Return whether it has adapters, and is to be told each token's."""

    @property
    def states(self) -> DeviceStates | None:
        """Return what its layers keep of sequences beside keys and values; None if nothing."""

    def tile(self, longest: int) -> int:
        """Return how many queries of a sequence one program of attention computes: for `query_blocks`."""

    def splits(self, sequences: int, longest: int) -> int:
        """Return into how many parts attention cuts the keys of a step of so many sequences."""

    def forward(self, batch: DeviceBatch) -> Tensor:
        """Return the logits (R, V), in the model's dtype or float32, and write keys and values.

        A function of the batch and the cache alone. With `ops.captures`, no shape, copy or wait of
        a step of decodes depends on what the tensors hold.
        """

    def rehearse(self) -> None:
        """Launch what steps of several tokens do and those of one don't, and is a form of its own."""

    def warm_up(self, sizes: Several[int]) -> str:
        """Measure how linears are best computed for steps of so many tokens; return the choice as a line."""


class EagerRunner:
    """Computes steps as they come, with nothing kept on the device but weights and cache."""

    def __init__(self, model: DeviceModel) -> None:
        self.model = model

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32."""
        model, longest = self.model, int((pieces.stops - pieces.starts).max())
        tables = torch.from_numpy(pieces.table.blocks).to(model.device)
        batch = pack_batch(
            pieces,
            tables,
            tile=model.tile(longest),
            splits=model.splits(len(pieces.slots), longest),
            adapts=model.adapts,
        )
        return model.forward(batch).float()
