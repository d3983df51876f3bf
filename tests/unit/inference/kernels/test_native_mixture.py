"""Mixtures of experts within layers: how experts are chosen, beside adapters, and where rows are left out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.kernels.choosing import SCORINGS, Choosing
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_adapters import LowRank
from inference.kernels.native_layers import NativeStack, StackShape
from inference.kernels.native_model import EndWeights, NativeModel
from tests.unit.inference.paged_attention import (
    LIBRARIES,
    built,
    every_library,
    native_step,
    page_count,
    page_table,
    whole,
)
from tests.unit.inference.paper_layers import PaperLayer, forward, native, random_layer, rotary, with_mixture
from tests.unit.inference.paper_mixtures import PaperMixture, random_mixture

torch.set_num_threads(1)
pytestmark = built
SHAPE = StackShape(hidden=48, heads=2, kv_heads=1, head_dim=16, inner=64, eps=1e-5, scaling=0.25)
PLAIN = Choosing(scoring="softmax", chosen=3)
GROUPS: tuple[dict[str, Any], ...] = (
    {},
    {"groups": 4, "kept": 2, "best": 1},
    {"groups": 3, "kept": 1, "best": 2},
    {"scale": 2.5, "chosen": 1},
)
CORRECTED = [
    replace(PLAIN, scoring=scoring, normalises=normalises, **more)
    for scoring, normalises, more in itertools.product(SCORINGS[:2], (False, True), GROUPS)
]
CHOOSINGS = [
    *CORRECTED,
    *(Choosing(scoring="sparsemixer", chosen=2, margin=margin) for margin in (0.02, 0.5, 5.0)),
]


def sequence(length: int) -> Tensor:
    return torch.randn(length, SHAPE.hidden, generator=torch.Generator().manual_seed(length))


def stack_of(library: Library, papers: list[PaperLayer], length: int) -> NativeStack:
    return native(library, papers, SHAPE, page_count([length], 1), WeightKind.FLOAT32)


def run(stack: NativeStack, x: Tensor, adapters: list[int] | None = None) -> Tensor:
    step = native_step(whole([len(x)])[0], page_table([len(x)], spare=1, seed=0))
    chosen = None if adapters is None else np.array(adapters, dtype=np.int32)
    return stack.run(x, *rotary(torch.arange(len(x)), SHAPE.head_dim), step, chosen)


def layer(mixture: PaperMixture, inner: int | None = None) -> PaperLayer:
    return with_mixture(random_layer(SHAPE), mixture, inner)


def wanted(papers: list[PaperLayer], x: Tensor) -> Tensor:
    return forward(papers, SHAPE, x, [rotary(torch.arange(len(x)), SHAPE.head_dim)])


@every_library
@pytest.mark.parametrize("corrects", [False, True])
def test_experts_are_chosen_as_by_torch(library: Library, corrects: bool) -> None:
    x = sequence(60)
    for choosing in CHOOSINGS:
        mends = corrects and choosing in CORRECTED
        papers = [layer(random_mixture(48, choosing, count=12, bias=True, corrects=mends, inner=24))]
        found, expected = run(stack_of(library, papers, 60), x), wanted(papers, x)
        assert (found - expected).abs().max() <= 2e-5 * expected.abs().max(), choosing


@every_library
@pytest.mark.parametrize("length", [3, 600], ids=["few rows", "many rows"])
def test_of_equal_scores_the_first_are_chosen(library: Library, length: int) -> None:
    mixture = random_mixture(48, PLAIN, count=9)
    equal = replace(mixture, router=torch.zeros_like(mixture.router))
    first = replace(
        mixture,
        router=torch.zeros(3, 48),
        up=mixture.up[:3],
        down=mixture.down[:3],
        choosing=replace(PLAIN, scale=1 / 3),
    )
    x = sequence(length)
    found = run(stack_of(library, [layer(equal)], length), x)
    expected = wanted([layer(first)], x)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@every_library
@pytest.mark.parametrize("choosing", [*CHOOSINGS[::3], CHOOSINGS[-2]], ids=str)
def test_what_is_no_number_stays_in_its_row(library: Library, choosing: Choosing) -> None:
    mends = choosing in CORRECTED
    papers = [layer(random_mixture(48, choosing, count=12, gated=True, corrects=mends), inner=40)]
    x = sequence(30)
    clean = run(stack_of(library, papers, 30), x)
    for value, row in itertools.product((torch.nan, torch.inf), (29, 12)):
        broken = x.clone()
        broken[row, 7] = value
        found = run(stack_of(library, papers, 30), broken)
        assert not found[row].isfinite().any()
        assert torch.equal(found[:row], clean[:row])  # those behind it attend to it


@every_library
def test_experts_that_nobody_is_given_to_change_nothing(library: Library) -> None:
    """And one that all are given to is computed with many rows."""
    mixture = random_mixture(48, replace(PLAIN, normalises=True), count=8)
    bias = torch.tensor([9.0, 0, 8, 0, 0, 7, 0, 0]) * 3
    papers = [layer(replace(mixture, bias=bias))]
    x = sequence(500)
    found, expected = run(stack_of(library, papers, 500), x), wanted(papers, x)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@every_library
@pytest.mark.parametrize("length", [5, 400], ids=["few rows", "many rows"])
def test_adapters_add_to_attention_and_to_what_is_shared(library: Library, length: int) -> None:
    generator = torch.Generator().manual_seed(5)

    def low(n: int, k: int) -> LowRank:
        return LowRank(
            torch.randn(3, k, generator=generator) * k**-0.5, torch.randn(n, 3, generator=generator)
        )

    apart = layer(random_mixture(48, PLAIN))
    shared = layer(random_mixture(48, PLAIN, gated=True), inner=40)
    papers = [apart, shared]
    ranks = [[low(64, 48)], [low(48, 32)], [], [], [low(64, 48)], [], [low(80, 48)], [low(48, 40)]]
    merged = []
    for paper, own in zip(papers, (ranks[:4], ranks[4:]), strict=True):
        linears = dict(paper.linears)
        for name, each in zip(("qkv", "out", "gate_up", "down"), own, strict=True):
            for one in each:
                linears[name] = linears[name].double() + one.up.double() @ one.down.double()
        merged.append(replace(paper, linears=linears))
    stack = stack_of(library, papers, length)
    stack.adapt([ranks])
    x = sequence(length)
    for chosen, expected in ((0, wanted(merged, x)), (-1, wanted(papers, x))):
        found = run(stack, x, [chosen] * length)
        assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@every_library
@pytest.mark.parametrize("length", [20, 500], ids=["few rows", "many rows"])
def test_trimmed_rows_have_the_same_bits(library: Library, length: int) -> None:
    choosing = replace(PLAIN, scoring="sigmoid", normalises=True)
    papers = [layer(random_mixture(48, choosing, gated=True), inner=40), layer(random_mixture(48, PLAIN))]
    table = torch.randn(75, 48, generator=torch.Generator().manual_seed(2))
    head = PackedLinear.pack(library, table.flip(0), None, WeightKind.FLOAT32)
    ends = EndWeights(table=table, head=head, norm=torch.ones(48), eps=1e-3)
    cos, sin = rotary(torch.arange(length), SHAPE.head_dim)
    rows = np.array([3, length // 2, length - 1])
    found = []
    for trims, some in ((True, rows), (False, np.arange(length))):
        model = NativeModel(library, stack_of(library, papers, length), ends, trims=trims)
        step = native_step(whole([length])[0], page_table([length], spare=1, seed=0))
        found.append(model.run(np.arange(length) % 75, some, [cos], [sin], step).values.clone())
    assert torch.equal(found[0], found[1][torch.from_numpy(rows)])


@pytest.mark.parametrize(
    "change",
    [
        {"choosing": replace(PLAIN, chosen=9)},
        {"choosing": replace(PLAIN, groups=3, kept=1)},
        {"choosing": replace(PLAIN, groups=4, kept=1)},
        {"correction": torch.zeros(7)},
        {"router": torch.zeros(9, 48)},
        {"gated": True},
    ],
    ids=str,
)
def test_mixtures_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    library = next(iter(LIBRARIES.values()))
    papers = [layer(replace(random_mixture(48, PLAIN), **change))]
    with pytest.raises(AssertionError):
        stack_of(library, papers, 5)


def test_layers_of_many_sizes_share_one_memory() -> None:
    for library in LIBRARIES.values():
        papers = [
            layer(random_mixture(48, PLAIN, count=4, inner=8)),
            layer(random_mixture(48, replace(PLAIN, chosen=7), count=20, inner=72, seed=1), inner=16),
            random_layer(SHAPE),
        ]
        stack = stack_of(library, papers, 300)
        for length in (1, 300, 40):
            found, expected = run(stack, sequence(length)), wanted(papers, sequence(length))
            assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()
