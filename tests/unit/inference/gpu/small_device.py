"""A small model on a device: its logits are a table's row, by the tokens that it finds in its own cache."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.gpu.ops import Ops, torch_ops
from inference.kv_cache.blocks import PAGE

VOCABULARY = 64


@contextmanager
def no_room_to_send(monkeypatch: pytest.MonkeyPatch, sender: ModuleType) -> Iterator[None]:
    """Have a module find no memory for what it sends to the device."""

    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sender, "upload", full)
        yield


class SmallModel:
    """Keeps ids where a real model keeps keys; what follows depends on the sum of a sequence's ids."""

    def __init__(self, blocks: int) -> None:
        self.cache = torch.full(((blocks + 1) * PAGE,), -1, dtype=torch.int64)
        self.table = torch.randn(997, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 4
        self.batches: list[DeviceBatch] = []
        self.tuned: tuple[int, ...] = ()

    ops: Ops = torch_ops()
    device = torch.device("cpu")
    dtype = torch.float32
    adapts = False
    states = None

    def tile(self, longest: int) -> int:
        return min(longest, 4)

    def splits(self, sequences: int, longest: int) -> int:
        return 1

    def rehearse(self) -> None:
        pass

    def warm_up(self, sizes: Several[int]) -> str:
        self.tuned = tuple(sizes)
        return "tuned"

    def forward(self, batch: DeviceBatch) -> Tensor:
        self.batches.append(batch)
        self.cache[batch.places] = batch.ids  # -1 is the last place, nobody's
        sums = []
        for at, (slot, length) in enumerate(zip(batch.slots.tolist(), batch.lengths.tolist(), strict=True)):
            for token in range(int(batch.starts[at]), int(batch.starts[at + 1])):
                known = int(batch.positions[token]) + 1 if length else 0
                places = torch.arange(known)
                pages = batch.tables[slot, places // PAGE].long()
                ids = self.cache[pages * PAGE + places % PAGE]
                assert (ids >= 0).all(), "a token that was never computed is read"
                sums.append(int(((places + 1) * (ids + 1)).sum()) % len(self.table))
        logits = self.table[sums]
        return logits if batch.rows is None else logits[batch.rows]

    def text(self, prompt: Several[int], count: int) -> list[int]:
        """Return the greedy text behind a prompt, computed without cache or batch."""
        ids = list(prompt)
        for _ in range(count):
            value = sum((at + 1) * (token + 1) for at, token in enumerate(ids)) % len(self.table)
            ids.append(int(self.table[value].argmax()))
        return ids[len(prompt) :]
