"""Rotations that attention modules look up in tables of their own: sines beside cosines, by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from inference.models.trace import LayerTrace, Pair, Rope

_NEAR = 1e-2  # of 1, as 16 bits round sines


class KeptRotation(nn.Module):
    """A rotary embedding that has all positions' numbers; neighbours are rotated against each other."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # (positions, rotary_dim): sines, then cosines

    def forward(self, positions: Tensor) -> Pair:
        """Return the cosines and sines (1, n, rotary_dim) of positions (1, n)."""
        sines, cosines = self.table[positions].float().repeat_interleave(2, -1).chunk(2, -1)
        return cosines.contiguous(), sines.contiguous()


def with_kept_rotations(layers: Sequence[LayerTrace], first: int) -> tuple[LayerTrace, ...]:
    """Return layers with the rotations that they keep, one for those whose tables are alike.

    `first`: the position of their traces' first token. Layers that were given a rotation stay as they are.
    """
    ropes: list[Rope] = []
    found = []
    for layer in layers:
        table = None if layer.rope is not None else next(_tables(layer.attention), None)
        if table is None or len(table) < first + len(layer.given):
            found.append(layer)
            continue
        rope = next((each for each in ropes if torch.equal(_table(each), table)), None)
        if rope is None:
            positions = torch.zeros(1, 1, dtype=torch.int64, device=table.device)
            rope = Rope(KeptRotation(table), (positions,), {})
            ropes.append(rope)
        tables = rope.tables(torch.arange(first, first + len(layer.given)))
        found.append(replace(layer, rope=rope, tables=tables))
    return tuple(found)


def _table(rope: Rope) -> Tensor:
    assert isinstance(rope.module, KeptRotation), "it was made here"
    return rope.module.table


def _tables(attention: nn.Module) -> Iterator[Tensor]:
    """Yield what of a module may be such a table."""
    for each in (*attention._buffers.values(), *vars(attention).values()):
        if (
            not isinstance(each, Tensor)
            or each.dim() != 2
            or each.shape[1] % 2
            or not each.is_floating_point()
        ):
            continue
        sines, cosines = each.float().chunk(2, -1)
        if (sines.square() + cosines.square() - 1).abs().max() < _NEAR:
            yield each
