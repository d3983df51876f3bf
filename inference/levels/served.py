"""A model at its level: what runs it, and what there is to say of it.

fused          all decoder layers of a step in one call of the C extension; on a GPU, nine kernels a layer
native         the model's own code over the C extension's linears and paged attention
paged+merged   one packed step over the paged cache, in torch or in Triton; parallel linears merged
paged          the same, linears as they are
batched        batches of single tokens, prompts in pieces, through its own attention over a paged cache
sequential     one sequence after the other through transformers' cache
uncached       the same, and each token computes its whole sequence again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inference.kernels.native import WeightKind
from inference.levels.proof import Verdict
from inference.models.linears import Packed
from inference.sequences.computing import Runner
from inference.telling import counted

if TYPE_CHECKING:
    from inference.gpu.model import DeviceModel
    from inference.levels.later import LaterAdapters

MakeRunner = Callable[[int], Runner[Tensor]]  # of a cache of so many blocks
MakeModel = Callable[[int], "DeviceModel"]  # the same

FEW_BITS = (
    WeightKind.BITS4,
    WeightKind.BITS8,
)  # forms of linears, as files have them or rounded at the start


class Level(StrEnum):
    """What a model runs at."""

    FUSED = "fused"
    NATIVE = "native"
    PAGED_MERGED = "paged+merged"
    PAGED = "paged"
    BATCHED = "batched"
    SEQUENTIAL = "sequential"
    UNCACHED = "uncached"

    @property
    def chunked(self) -> bool:
        """Return whether prompts may be computed in pieces, packed with other sequences."""
        return self not in (Level.SEQUENTIAL, Level.UNCACHED)

    @property
    def native(self) -> bool:
        """Return whether attention and its cache are the C extension's, or on a GPU whole layers Triton's."""
        return self in (Level.FUSED, Level.NATIVE)


@dataclass(frozen=True, slots=True)
class Served:
    """A model at its level."""

    level: Level
    reason: str  # why not at a better one; "" at the best
    verdict: Verdict
    exact: bool  # a token's logits are the same bits alone, in a batch and with its prompt in pieces
    vocabulary: int  # columns of its logits: can be more than the tokenizer's tokens
    kv_bytes: int  # of one token in the paged cache, all layers together; 0 if there is none
    kv_dtype: torch.dtype  # of keys and values, whatever the cache
    make_runner: MakeRunner
    packed: tuple[Packed, ...]  # the linears that are packed
    torch_heavy: bool  # torch computes with big parameters
    state_bytes: int = 0  # of what all layers that keep a state have read of one text
    state_layers: int = 0  # how many do
    together: bool = False  # texts go on in batches, though prompts are whole
    decoder_start: tuple[int, ...] = ()  # what its decoder begins with; (): it has no encoder
    make_model: MakeModel | None = None  # the model on a device; None: levels that have no such form
    later: LaterAdapters | None = None  # what takes adapters up while it runs, if that was asked for

    def __str__(self) -> str:
        """Return the level and what there is to say of it as one line for a person."""
        bits = "the same bits in any batch" if self.exact else "last bits depend on the batch"
        if not self.level.chunked:
            whole = (
                "prompts whole, one at a time"
                if self.together
                else "one sequence at a time, its prompt whole"
            )
            bits = f"{whole}, no prefix cache"
        cache = f"KV cache in {str(self.kv_dtype).removeprefix('torch.')}; " if self.kv_bytes else ""
        if self.state_layers:
            bits = f"states of {counted(self.state_layers, 'layer')}; {bits}"
        return f"Level {self.name} ({cache}{bits}; {self.verdict.error:.1e} off the model's own logits)"

    @property
    def name(self) -> str:
        """Return the level, with why it isn't a better one."""
        return f"{self.level}: {self.reason}" if self.reason else str(self.level)

    @property
    def quantizes(self) -> bool:
        """Return whether its linears are the C extension's, which can keep them in 8 bits."""
        return bool(self.packed) and (self.level.native or self.level is Level.BATCHED)

    @property
    def keeps_codes(self) -> bool:
        """Return whether weights stay in the few bits that files have them in."""
        return any(each.form in FEW_BITS for each in self.packed)

    @property
    def weights(self) -> str:
        """Return how many linears are kept in which form, as a line for a person; "" if none are packed."""
        sizes = Counter[str]()
        for each in self.packed:
            sizes[each.form] += each.nbytes
        parts = [f"{size / 2**20:,.0f} MiB in {form}" for form, size in sizes.most_common()]
        return f"{len(self.packed)} linears packed: {', '.join(parts)}" if parts else ""

    @property
    def weights_dtype(self) -> str | None:
        """Return what most packed weights are kept in, as torch calls it; None if none are packed.

        What is in few bits has no such name.
        """
        sizes = Counter[str]()
        for each in self.packed:
            if not each.form[0].isdigit():
                sizes[each.form] += each.nbytes
        return f"torch.{sizes.most_common(1)[0][0].partition(' ')[0]}" if sizes else None
