"""What adapters add to layers in C: right by weights that have it in them, and the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.native import Library, WeightKind
from inference.kernels.native_adapters import LowRank
from inference.kernels.native_layers import NativeStack, StackShape
from tests.unit.inference.paged_attention import (
    ISAS,
    LIBRARIES,
    Pieces,
    built,
    every_library,
    native_step,
    page_count,
    page_table,
    steps_of,
    whole,
)
from tests.unit.inference.paper_layers import LAYER_KINDS, PaperLayer, forward, native, random_layer, rotary

torch.set_num_threads(1)
pytestmark = built
SHAPE = StackShape(hidden=48, heads=6, kv_heads=2, head_dim=16, inner=96, eps=1e-5, scaling=0.25)
SHAPES = {
    "panels end with parts": SHAPE,
    "nothing ends with a panel": replace(SHAPE, hidden=50, inner=75, head_dim=10, heads=5, kv_heads=1),
}
NAMES = ("qkv", "out", "gate_up", "down")
Ranks = list[list[LowRank]]


def papers_of(shape: StackShape) -> list[PaperLayer]:
    return [random_layer(shape, seed=seed) for seed in range(2)]


def adapter(shape: StackShape, seed: int, rank: int) -> Ranks:
    """Return low ranks of both layers: of q and v, say, but of `out` in one alone."""
    generator = torch.Generator().manual_seed(seed)

    def low(k: int, count: int, first: int) -> LowRank:
        down = torch.randn(rank, k, generator=generator) * k**-0.5
        up = torch.randn(count, rank, generator=generator) * 0.3
        kinds = (torch.float32, torch.bfloat16) if seed % 2 else (torch.bfloat16, torch.float32)
        return LowRank(down.to(kinds[0]), up.to(kinds[1]), 0.5 * seed, first)

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    of_layer = [
        [low(shape.hidden, queries, 0), low(shape.hidden, keys, queries + keys)],
        [low(queries, shape.hidden, 0)],
        [low(shape.hidden, shape.inner, 0), low(shape.hidden, shape.inner, shape.inner)],
        [low(shape.inner, shape.hidden, 0)],
    ]
    return [*of_layer, of_layer[0], [], *of_layer[2:]]


def merged(papers: list[PaperLayer], ranks: Ranks) -> list[PaperLayer]:
    """Return layers whose weights have an adapter in them."""
    found = []
    for at, paper in enumerate(papers):
        linears = {name: weight.double().clone() for name, weight in paper.linears.items()}
        for name, several in zip(NAMES, ranks[at * 4 : at * 4 + 4], strict=True):
            for low in several:
                added = low.scale * low.up.double() @ low.down.double()
                linears[name][low.first : low.first + len(low.up)] += added
        found.append(replace(paper, linears=linears))
    return found


def run(stack: NativeStack, inputs: list[Tensor], steps: list[Pieces], chosen: list[int]) -> list[Tensor]:
    """Return what the stack gives of each sequence (tokens, hidden), by the adapters that were chosen."""
    table = page_table([len(each) for each in inputs], spare=1, seed=0)
    found = [torch.full_like(each, torch.nan) for each in inputs]
    for pieces in steps:
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in pieces])
        hidden = torch.cat([inputs[i][start:stop] for i, start, stop in pieces])
        adapters = np.repeat([chosen[i] for i, *_ in pieces], [b - a for _, a, b in pieces])
        rotation = rotary(positions, stack.shape.head_dim)
        rows = stack.run(hidden, *rotation, native_step(pieces, table), adapters.astype(np.int32))
        for (i, start, stop), part in zip(pieces, rows.split([b - a for _, a, b in pieces]), strict=True):
            found[i][start:stop] = part
    return found


def sequence(length: int, hidden: int) -> Tensor:
    return torch.randn(length, hidden, generator=torch.Generator().manual_seed(length))


@every_library
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("length", [5, 400], ids=["few rows", "many rows"])
def test_it_agrees_with_float64(library: Library, shape: StackShape, length: int) -> None:
    papers = papers_of(shape)
    several = [adapter(shape, 1, rank=3), adapter(shape, 2, rank=19)]
    inputs = [sequence(length + at, shape.hidden) for at in range(3)]
    lengths = [len(each) for each in inputs]
    stack = native(library, papers, shape, page_count(lengths, 1), WeightKind.FLOAT32)
    stack.adapt(several)
    chosen = [1, -1, 0]
    for x, found, which in zip(inputs, run(stack, inputs, whole(lengths), chosen), chosen, strict=True):
        layers = papers if which < 0 else merged(papers, several[which])
        wanted = forward(layers, shape, x, [rotary(torch.arange(len(x)), shape.head_dim)])
        assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()
        assert (forward(papers, shape, x, [rotary(torch.arange(len(x)), shape.head_dim)]) - wanted).norm() > (
            0.1 * wanted.norm() if which >= 0 else -1
        )


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_pieces_and_threads_change_no_bit(data: st.DataObject) -> None:
    shape = SHAPES[data.draw(st.sampled_from(list(SHAPES)))]
    papers, several = papers_of(shape), [adapter(shape, 1, rank=3), adapter(shape, 2, rank=19)]
    kind, isa = data.draw(st.sampled_from(LAYER_KINDS)), data.draw(st.sampled_from(ISAS))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    chosen = [data.draw(st.integers(-1, 1)) for _ in lengths]
    inputs = [sequence(length, shape.hidden) for length in lengths]
    library = LIBRARIES[isa, data.draw(st.sampled_from([1, 3]))]
    together = native(library, papers, shape, page_count(lengths, 1), kind)
    together.adapt(several)
    found = run(together, inputs, data.draw(steps_of(lengths)), chosen)
    for x, rows, which in zip(inputs, found, chosen, strict=True):
        alone = native(LIBRARIES[isa, 1], papers, shape, page_count([len(x)], 1), kind)
        alone.adapt(several if which >= 0 else [])
        assert torch.equal(run(alone, [x], whole([len(x)]), [which])[0], rows)


def test_an_adapter_that_is_not_there_is_not_looked_for() -> None:
    stack = native(LIBRARIES[ISAS[0], 1], papers_of(SHAPE), SHAPE, 1, WeightKind.FLOAT32)
    stack.adapt([adapter(SHAPE, 1, rank=3)])
    with pytest.raises(AssertionError, match="one of those at hand"):
        run(stack, [sequence(3, SHAPE.hidden)], whole([3]), [1])


def test_low_ranks_that_do_not_fit_are_not_taken() -> None:
    stack = native(LIBRARIES[ISAS[0], 1], papers_of(SHAPE), SHAPE, 1, WeightKind.FLOAT32)
    ranks = adapter(SHAPE, 1, rank=3)
    low = ranks[1][0]
    for wrong in (replace(low, first=1), replace(low, down=low.down[:, 1:]), replace(low, down=low.down[1:])):
        with pytest.raises(AssertionError, match=r"it reads|both sides|it adds to"):
            stack.adapt([[ranks[0], [wrong], *ranks[2:]]])
