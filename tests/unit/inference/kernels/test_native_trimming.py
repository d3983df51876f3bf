"""Of the last layer only what the logits asked for depend on is computed, and it changes no bit of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.layer_checks import norm_shape
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_layers import StackShape
from inference.kernels.native_model import EndWeights, NativeModel
from inference.kv_cache.blocks import PAGE, blocks_for
from tests.unit.inference.kernels.test_native_adapters import adapter
from tests.unit.inference.paged_attention import (
    ISAS,
    LIBRARIES,
    Pieces,
    Table,
    built,
    every_library,
    native_step,
    steps_of,
)
from tests.unit.inference.paper_layers import LAYER_KINDS, NORMS, native, random_layer, rotary

torch.set_num_threads(1)
pytestmark = built
SHAPES = [
    StackShape(hidden=48, heads=6, kv_heads=2, head_dim=16, inner=96, eps=1e-5, scaling=0.25),
    StackShape(hidden=50, heads=5, kv_heads=1, head_dim=10, inner=75, eps=1e-5, scaling=0.25),
    StackShape(hidden=50, heads=5, kv_heads=1, head_dim=10, inner=75, eps=1e-5, scaling=0.25, centred=True),
]
WORDS = 75
LONGEST = 640
SPLIT = 256  # of attention.h: what sequences attend to together is whole splits


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sequences that begin with `shared` tokens in the same pages, and how they are computed."""

    shape: StackShape
    kind: WeightKind
    shared: int
    lengths: list[int]  # behind these
    adapters: list[int]
    steps: list[Pieces]

    def table(self) -> Table:
        """Return each sequence's pages, those of the shared tokens first."""
        common = self.shared // PAGE
        counts = [blocks_for(self.shared + length) - common for length in self.lengths]
        table = np.full((len(counts), common + max(counts)), -1, dtype=np.int32)
        table[:, :common] = range(common)
        for row, count, first in zip(table, counts, common + np.cumsum([0, *counts]), strict=False):
            row[common : common + count] = range(first, first + count)
        return table


@st.composite
def works(draw: st.DrawFn) -> Work:
    lengths = draw(st.lists(st.integers(1, 90), min_size=1, max_size=4))
    shared = draw(st.sampled_from([0, SPLIT, SPLIT + PAGE]))
    own = draw(steps_of(lengths))
    steps = [[(i, start + shared, stop + shared) for i, start, stop in pieces] for pieces in own]
    return Work(
        shape=draw(st.sampled_from(SHAPES)),
        kind=draw(st.sampled_from(LAYER_KINDS)),
        shared=shared,
        lengths=lengths,
        adapters=[draw(st.integers(-1, 1)) for _ in lengths],
        steps=[*([[(0, 0, shared)]] if shared else []), *steps],
    )


@st.composite
def choices(draw: st.DrawFn, pieces: Pieces) -> NDArray[np.bool_]:
    """Draw which of a step's tokens get logits: of some pieces the last, as mostly, or any."""
    found: list[NDArray[np.bool_]] = []
    for size in (stop - start for _, start, stop in pieces):
        last = np.arange(size) == size - 1
        some = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        found.append(draw(st.sampled_from([last, last, np.zeros(size, dtype=bool), some, ~last])))
    return np.concatenate(found)


def made(library: Library, work: Work, *, trims: bool) -> NativeModel:
    shape, generator = work.shape, torch.Generator().manual_seed(1)
    norms = [NORMS[:2], NORMS[:2] if shape.centred else NORMS]
    papers = [replace(random_layer(shape, each, at), parallel=shape.centred) for at, each in enumerate(norms)]
    stack = native(library, papers, shape, int(work.table().max()) + 1, work.kind)
    if max(work.adapters) >= 0:
        stack.adapt([adapter(shape, 1, rank=3), adapter(shape, 2, rank=19)])
    head, norm = torch.randn(WORDS, shape.hidden, generator=generator), torch.ones(norm_shape(shape))
    table = torch.randn(WORDS, shape.hidden, generator=generator)
    ends = EndWeights(
        table=table, head=PackedLinear.pack(library, head, None, WeightKind.FLOAT32), norm=norm, eps=1e-3
    )
    return NativeModel(library, stack, ends, trims=trims)


def run(model: NativeModel, work: Work, wanted: list[NDArray[np.int64]]) -> list[tuple[Tensor, ...]]:
    """Return the logits of each step's wanted rows, and what is said of them."""
    cos, sin = rotary(torch.arange(LONGEST), work.shape.head_dim)
    table, found = work.table(), []
    for pieces, rows in zip(work.steps, wanted, strict=True):
        sizes = [stop - start for _, start, stop in pieces]
        ids = np.concatenate([np.arange(start, stop) * (i + 3) % WORDS for i, start, stop in pieces])
        adapters = np.repeat([work.adapters[i] for i, *_ in pieces], sizes).astype(np.int32)
        given = adapters if max(work.adapters) >= 0 else None
        logits = model.run(ids, rows, [cos], [sin], native_step(pieces, table), given)
        found.append(tuple(torch.as_tensor(each).clone() for each in logits))
    return found


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_logits_and_what_later_steps_make_of_them_have_the_same_bits(data: st.DataObject) -> None:
    work = data.draw(works())
    every = [np.arange(sum(stop - start for _, start, stop in pieces)) for pieces in work.steps]
    wanted = [rows[data.draw(choices(pieces))] for rows, pieces in zip(every, work.steps, strict=True)]
    library = LIBRARIES[data.draw(st.sampled_from(ISAS)), data.draw(st.sampled_from([1, 3]))]
    whole = run(made(library, work, trims=False), work, every)
    trimmed = run(made(library, work, trims=True), work, wanted)
    for rows, all_, some in zip(wanted, whole, trimmed, strict=True):
        for one, other in zip(all_, some, strict=True):
            assert torch.equal(one[torch.from_numpy(rows)], other)


@every_library
@pytest.mark.parametrize("kind", LAYER_KINDS)
@pytest.mark.parametrize("adapters", [[-1, -1], [1, 0]], ids=["plain", "adapters"])
def test_many_rows_are_trimmed_too(library: Library, kind: WeightKind, adapters: list[int]) -> None:
    steps: list[Pieces] = [[(0, 0, 400), (1, 0, 9)], [(0, 400, 401), (1, 9, 380)]]
    work = Work(shape=SHAPES[0], kind=kind, shared=0, lengths=[401, 380], adapters=adapters, steps=steps)
    wanted = [np.array([408]), np.array([0, 371])]
    whole = run(made(library, work, trims=False), work, [np.arange(409), np.arange(372)])
    trimmed = run(made(library, work, trims=True), work, wanted)
    for rows, every, some in zip(wanted, whole, trimmed, strict=True):
        assert torch.equal(every[0][torch.from_numpy(rows)], some[0])


@every_library
def test_sequences_attend_together_although_nobody_reads_what_one_is_given(library: Library) -> None:
    """Of three that share a split, two go on by a token each, of which one gets no logits."""
    first: Pieces = [(0, SPLIT, SPLIT + 1), (1, SPLIT, SPLIT + 1), (2, SPLIT, SPLIT + 40)]
    steps: list[Pieces] = [[(0, 0, SPLIT)], first, [(i, stop, stop + 1) for i, _, stop in first]]
    lengths, adapters = [2, 2, 41], [-1, -1, -1]
    work = Work(
        shape=SHAPES[0],
        kind=WeightKind.FLOAT32,
        shared=SPLIT,
        lengths=lengths,
        adapters=adapters,
        steps=[*steps[:2], *steps[1:]],
    )
    wanted = [np.empty(0, dtype=np.int64), np.array([0, 41]), np.array([1]), np.arange(3)]
    whole = run(made(library, work, trims=False), work, [np.arange(n) for n in (SPLIT, 42, 42, 3)])
    trimmed = run(made(library, work, trims=True), work, wanted)
    for rows, every, some in zip(wanted, whole, trimmed, strict=True):
        assert torch.equal(every[0][torch.from_numpy(rows)], some[0])


@every_library
@pytest.mark.parametrize(
    "rows", [[0, 0], [2, 1], [-1, 1], [1, 20]], ids=["twice", "falling", "before", "behind"]
)
def test_rows_that_do_not_rise_among_the_tokens_are_refused(library: Library, rows: list[int]) -> None:
    work = Work(
        shape=SHAPES[0], kind=WeightKind.FLOAT32, shared=0, lengths=[20], adapters=[-1], steps=[[(0, 0, 20)]]
    )
    with pytest.raises(AssertionError, match="rows are of the step's tokens"):
        run(made(library, work, trims=True), work, [np.array(rows)])
