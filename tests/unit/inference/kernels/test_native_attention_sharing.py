"""Sequences that read the same pages attend to them together, and it changes no bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import dtype as Dtype

from inference.kernels.native import Library
from inference.kernels.native_attention import NativeCacheLayer
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import PAGE, blocks_for
from inference.models.paged import LayerShape
from tests.unit.inference.paged_attention import (
    FORMS,
    ISAS,
    LIBRARIES,
    Pieces,
    Table,
    Tokens,
    built,
    expected,
    native_step,
    tokens,
)

torch.set_num_threads(1)
pytestmark = built
SPLIT = 256  # of attention.h: what is shared is whole splits
DECODED = 3  # tokens of each sequence, one by one


@dataclass(frozen=True, slots=True)
class Branch:
    """A sequence: the first `shared` tokens are those of the sequence `of`, which came before."""

    of: int
    shared: int
    own: int

    @property
    def length(self) -> int:
        return self.shared + self.own


def grow(branches: list[Branch], group: int, dim: int) -> tuple[list[Tokens], Table]:
    """Return the sequences, and the pages on which they lie."""
    sequences: list[Tokens] = []
    table = np.full((len(branches), max(blocks_for(each.length) for each in branches)), -1, dtype=np.int32)
    taken = 0
    for index, branch in enumerate(branches):
        own = tokens(branch.length, 2 * group, 2, dim, seed=index)
        if branch.shared:
            of = sequences[branch.of]
            own.key[: branch.shared] = of.key[: branch.shared]
            own.value[: branch.shared] = of.value[: branch.shared]
        sequences.append(own)
        known, wanted = branch.shared // PAGE, blocks_for(branch.length)
        table[index, :known] = table[branch.of, :known]
        table[index, known:wanted] = range(taken, taken + wanted - known)
        taken += wanted - known
    return sequences, table


def run(
    library: Library,
    sequences: list[Tokens],
    table: Table,
    steps: list[Pieces],
    how: Attention,
    dtype: Dtype = torch.float32,
    rounded: bool = False,
) -> list[Tensor]:
    """Return what the steps give of each sequence, NaN where they compute nothing."""
    shape = LayerShape(2, sequences[0].key.shape[2], sequences[0].value.shape[2])
    layer = NativeCacheLayer(library, shape, int(table.max()) + 1, dtype, rounded=rounded)
    layer.keys.fill_(torch.nan)  # what nobody wrote must not matter
    layer.values.fill_(torch.nan)
    found = [torch.full_like(each.query, torch.nan) for each in sequences]
    for pieces in steps:
        parts = [
            torch.cat([getattr(sequences[i], name)[a:b] for i, a, b in pieces])
            for name in ("query", "key", "value")
        ]
        rows = layer.attend(parts[0], parts[1], parts[2], native_step(pieces, table), how)
        for (i, a, b), part in zip(pieces, rows.split([b - a for _, a, b in pieces]), strict=True):
            found[i][a:b] = part
    return found


def steps_of(branches: list[Branch]) -> tuple[list[Pieces], list[Pieces]]:
    """Return the prompts' steps, one by one, and the steps in which all go on together."""
    prompts = [[(i, each.shared, each.length - DECODED)] for i, each in enumerate(branches)]
    together = [
        [(i, each.length - left, each.length - left + 1) for i, each in enumerate(branches)]
        for left in range(DECODED, 0, -1)
    ]
    return prompts, together


@st.composite
def trees(draw: st.DrawFn) -> list[Branch]:
    """Draw sequences that begin like others before them, for some splits and some pages more."""
    first = Branch(0, 0, draw(st.integers(SPLIT, 3 * SPLIT)))
    branches = [first]
    for _ in range(draw(st.integers(1, 9))):
        of = draw(st.integers(0, len(branches) - 1))
        prompt = branches[of].length - DECODED  # what is decoded together is nobody's beginning
        splits = draw(st.integers(0, prompt // SPLIT))
        pages = min(splits * SPLIT // PAGE + draw(st.integers(0, 3)), prompt // PAGE)
        branches.append(Branch(of, pages * PAGE, draw(st.integers(DECODED + 1, 40))))
    return branches


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_sharing_pages_changes_no_bit(data: st.DataObject) -> None:
    branches = data.draw(trees())
    group, dim = data.draw(st.sampled_from([(1, 8), (3, 16), (7, 24), (25, 8)]))
    softcap, slopes = data.draw(
        st.sampled_from([(None, None), (10.0, None), (None, torch.logspace(-3, 0, 2 * group))])
    )
    how = Attention(
        scaling=0.3,
        window=data.draw(st.sampled_from([None, 17, SPLIT, SPLIT + 100])),
        chunk=data.draw(st.sampled_from([None, SPLIT // 2 + 1, SPLIT + 30])),
        softcap=softcap,
        slopes=slopes,
        sinks=data.draw(st.sampled_from([None, torch.linspace(-1, 2, 2 * group)])),
    )
    form = data.draw(st.sampled_from(FORMS))
    library = LIBRARIES[data.draw(st.sampled_from(ISAS)), data.draw(st.sampled_from([1, 3]))]
    sequences, table = grow(branches, group, dim)
    prompts, together = steps_of(branches)
    apart = [[piece] for pieces in together for piece in pieces]
    if data.draw(st.booleans()):  # a prompt beside them, of a sequence that reads no shared page
        together[1] = [(len(branches), 0, 30), *together[1]]
        apart.append([(len(branches), 0, 30)])
        sequences, table = grow([*branches, Branch(0, 0, 30)], group, dim)
    found = run(library, sequences, table, prompts + together, how, *form)
    alone = run(library, sequences, table, prompts + apart, how, *form)
    for ours, theirs in zip(found, alone, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("count", [2, 8, 9, 17])
def test_shared_pages_agree_with_float64(count: int) -> None:
    branches = [Branch(0, 0, 2 * SPLIT + 20)] + [Branch(0, 2 * SPLIT, 4 + i) for i in range(1, count)]
    sequences, table = grow(branches, 3, 16)
    prompts, together = steps_of(branches)
    how = Attention(scaling=0.25)
    for library in LIBRARIES.values():
        found = run(library, sequences, table, prompts + together, how)
        for sequence, rows in zip(sequences, found, strict=True):
            wanted = expected(sequence, how)[-DECODED:]
            torch.testing.assert_close(rows[-DECODED:].double(), wanted, atol=2e-5, rtol=1e-5)


def test_one_sequences_nan_stays_its_own_on_shared_pages() -> None:
    branches = [Branch(0, 0, SPLIT + 20), Branch(0, SPLIT, 9), Branch(0, SPLIT, 7)]
    sequences, table = grow(branches, 3, 16)
    sequences[1].query[:] = torch.nan
    prompts, together = steps_of(branches)
    how = Attention(scaling=0.25)
    library = LIBRARIES[ISAS[0], 1]
    found = run(library, sequences, table, prompts + together, how)
    assert found[1][-DECODED:].isnan().all()
    assert not found[0][-DECODED:].isnan().any()
    assert not found[2][-DECODED:].isnan().any()


@pytest.mark.parametrize(("dtype", "rounded"), FORMS)
def test_each_query_keeps_its_own_window_over_shared_pages(dtype: Dtype, rounded: bool) -> None:
    branches = [Branch(0, 0, 2 * SPLIT + 20)] + [Branch(0, 2 * SPLIT, 4 + 3 * i) for i in range(1, 8)]
    sequences, table = grow(branches, 3, 16)
    prompts, together = steps_of(branches)
    apart = [[piece] for pieces in together for piece in pieces]
    how = Attention(scaling=0.25, window=SPLIT + 50)  # begins within the first split, elsewhere for each
    for library in LIBRARIES.values():
        found, alone = (
            run(library, sequences, table, prompts + steps, how, dtype, rounded)
            for steps in (together, apart)
        )
        for ours, theirs in zip(found, alone, strict=True):
            assert torch.equal(ours[-DECODED:], theirs[-DECODED:])


@pytest.mark.parametrize("group", [9, 12])
def test_three_share_a_long_beginning_where_a_tile_takes_two(group: int) -> None:
    splits, count = 40, 3
    table = np.tile(np.arange(splits * SPLIT // PAGE + 1, dtype=np.int32), (count, 1))
    table[:, -1] += np.arange(count, dtype=np.int32)
    step = [(each, splits * SPLIT, splits * SPLIT + 1) for each in range(count)]
    noise = torch.Generator().manual_seed(group)

    def attended(pieces: Pieces) -> Tensor:
        noise.manual_seed(group)
        layer = NativeCacheLayer(LIBRARIES[ISAS[0], 1], LayerShape(1, 8, 8), int(table.max()) + 1)
        for cached in (layer.keys, layer.values):
            cached.normal_(generator=noise)
        rows = [torch.randn(count, heads, 8, generator=noise) for heads in (group, 1, 1)]
        rows = [each[[i for i, _, _ in pieces]] for each in rows]
        return layer.attend(rows[0], rows[1], rows[2], native_step(pieces, table), Attention(scaling=0.3))

    assert torch.equal(attended(step), torch.cat([attended([piece]) for piece in step]))
