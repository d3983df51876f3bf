"""The oracle is attention over whole sequences, in float64; the cache has NaN wherever nobody's keys are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from inference.gpu.ops import HeadShape, triton_ops
from inference.kernels.gpu.latent_tiles import (
    LEAST_PART,
    MOST_SPLITS,
    LatentTiles,
    fixed_latent_tiles,
    latent_splits,
    latent_tile,
    latent_tiles,
    latents_fit,
)
from inference.kernels.reference import Attention
from tests.unit.inference.kernels_gpu.packed import PADDING, Cut, LatentPaper, latents
from tests.unit.inference.paged_attention import Pieces
from tests.unit.inference.triton_device import DEVICE

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
HOW = Attention(scaling=0.2, latent=True)
SMALL = LatentTiles(16, 16, 4, 2)  # borders of blocks are soon reached, and the interpreter is quick
SLOW: dict[str, Any] = {  # the interpreter is: looking for a smaller example would take minutes
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


@st.composite
def steps(draw: st.DrawFn) -> tuple[LatentPaper, Pieces, Cut]:
    """Draw a step of up to three sequences, each computing some of its last tokens, and padding."""
    heads = draw(st.sampled_from([1, 4, 7, 16, 20, 40]))
    latent, turned = draw(st.sampled_from([(32, 16), (64, 8), (40, 16), (24, 4)]))
    lengths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    pieces = [(i, length - draw(st.integers(1, min(length, 8))), length) for i, length in enumerate(lengths)]
    pieces += [PADDING] * draw(st.integers(0, 1))
    tiles = draw(st.sampled_from([SMALL, LatentTiles(32, 32, 4, 2), LatentTiles(64, 64, 8, 2)]))
    cut = Cut(draw(st.integers(1, 9)), draw(st.sampled_from([1, 1, 2, 4])), tiles)
    paper = LatentPaper([latents(n, heads, latent, turned, seed=i) for i, n in enumerate(lengths)])
    return paper, draw(st.permutations(pieces)), cut


@settings(max_examples=14, **SLOW)
@given(steps())
def test_a_step_computes_what_whole_sequences_would(step: tuple[LatentPaper, Pieces, Cut]) -> None:
    paper, pieces, cut = step
    paper.check(pieces, HOW, cut)


@settings(max_examples=5, **SLOW)
@given(steps())
def test_the_company_changes_no_bit(step: tuple[LatentPaper, Pieces, Cut]) -> None:
    paper, pieces, cut = step
    together = paper.attend(pieces, HOW, cut).split([stop - start for _, start, stop in pieces])
    for piece, found in zip(pieces, together, strict=True):
        if piece != PADDING:
            assert torch.equal(paper.attend([piece], HOW, cut), found)


@settings(max_examples=6, **SLOW)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=4))
def test_the_cut_of_a_prompt_changes_no_bit(sizes: list[int]) -> None:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    paper, cut = LatentPaper([latents(ends[-1], 6, 32, 16)]), Cut(8, 1, SMALL)
    whole = paper.attend([(0, 0, ends[-1])], HOW, cut)
    parts = [paper.attend([(0, start, stop)], HOW, cut) for start, stop in pairwise(ends)]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("heads", [4, 20])
def test_the_deterministic_choice_changes_no_bit_between_prompts_and_decodes(heads: int) -> None:
    """It takes one tile whatever the step, so that a decode's programs are those of a prompt."""
    tiles = {latent_tile(heads, n, deterministic=True) for n in (1, 2, 50, 5000)}
    assert 1 == len(tiles)
    cut = Cut(tiles.pop(), 1, fixed_latent_tiles(2))
    paper = LatentPaper([latents(70, heads, 64, 16)], BF16)
    whole = paper.attend([(0, 0, 70)], HOW, cut)
    decoded = [paper.attend([(0, at, at + 1)], HOW, cut) for at in (0, 15, 16, 64, 69)]
    assert torch.equal(whole[[0, 15, 16, 64, 69]], torch.cat(decoded))


@pytest.mark.parametrize(("dtype", "splits"), [(F16, 1), (BF16, 2), (F32, 2)], ids=str)
def test_every_dtype_by_the_tables_choice(dtype: torch.dtype, splits: int) -> None:
    lengths = [40, 1, 33, 6]
    paper = LatentPaper([latents(n, 20, 48, 16, seed=i) for i, n in enumerate(lengths)], dtype)
    pieces = [(2, 32, 33), PADDING, (0, 33, 40), (1, 0, 1), (3, 0, 6)]
    paper.check(pieces, HOW, Cut(latent_tile(20, 7, itemsize=dtype.itemsize), splits, None))
    decodes = [(2, 32, 33), (0, 39, 40), PADDING, (1, 0, 1)]
    paper.check(decodes, HOW, Cut(1, splits, None))


@pytest.mark.parametrize("splits", [2, 8])
def test_a_part_has_its_least_keys(splits: int) -> None:
    """One key more than a part has: the second has one, others none."""
    lengths = [LEAST_PART, LEAST_PART + 1, 2 * LEAST_PART + 33]
    paper = LatentPaper([latents(n, 2, 32, 16, seed=n) for n in lengths])
    paper.check([(i, n - 1, n) for i, n in enumerate(lengths)], HOW, Cut(1, splits, SMALL))


def test_more_than_a_processor_holds_is_refused() -> None:
    paper = LatentPaper([latents(3, 1, 32, 16)])
    with pytest.raises(ValueError, match="--latent-cache false"):
        paper.attend([(0, 0, 3)], Attention(scaling=0.2, window=2, latent=True), Cut(1, 1, SMALL))
    assert latents_fit(512, 64, 2)
    assert latents_fit(512, 64, 4)
    assert not latents_fit(1024, 64, 2)
    with pytest.raises(ValueError, match="latents of 1024 numbers"):
        LatentPaper([latents(3, 1, 1024, 16)]).attend([(0, 0, 3)], HOW, Cut(1, 1, SMALL))


@pytest.mark.parametrize("heads", [1, 16, 20, 40, 71, 128])
def test_query_blocks_fill_whole_programs(heads: int) -> None:
    rows = latent_tiles(heads, 2, decodes=False).rows
    assert 0 == latent_tile(heads, 100) * heads % rows
    assert 1 == latent_tile(heads, 1)
    assert latent_tiles(heads, 2, decodes=True).rows >= min(heads, rows)


def test_few_sequences_are_split_to_fill_the_device() -> None:
    assert MOST_SPLITS == latent_splits(1, 16, 132)
    assert [16, 4, 1, 1] == [latent_splits(n, 20, 132) for n in (32, 128, 512, 1024)]
    assert latent_splits(8, 128, 132) < latent_splits(8, 16, 132)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_device_attends_and_multiplies_by_heads(deterministic: bool) -> None:
    ops, size = triton_ops(deterministic=deterministic, overlaps=False), HeadShape(20, 1, 48, 4, latent=True)
    lengths = [33, 140]
    paper = LatentPaper([latents(n, 20, 32, 16, seed=n) for n in lengths])
    for pieces in ([(0, 32, 33), (1, 139, 140)], [(0, 30, 33), (1, 139, 140)]):
        longest = max(stop - start for _, start, stop in pieces)
        cut = Cut(ops.tile(size, longest), ops.splits(size, len(pieces), longest), None)
        keys, values = paper.filled(pieces)
        query = torch.cat([paper.sequences[at].query[start:stop] for at, start, stop in pieces]).to(DEVICE)
        found = ops.paged_attention(query, keys, values, paper.batch(pieces, cut), HOW)
        assert torch.allclose(found.cpu().double(), paper.expected(pieces, HOW), atol=1e-5)
    x, weight = torch.randn(5, 3, 24, device=DEVICE), torch.randn(3, 24, 10, device=DEVICE).transpose(1, 2)
    expected = torch.einsum("thk,hnk->thn", x, weight)
    assert torch.allclose(ops.multiply_heads(x, weight), expected, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(  # few, since a dozen kernels are compiled for each
    ("dtype", "heads", "latent", "turned"),
    [(BF16, 16, 512, 64), (BF16, 20, 512, 64), (BF16, 128, 512, 64), (F16, 40, 256, 32), (F32, 16, 512, 64)],
    ids=str,
)
def test_real_sizes(dtype: torch.dtype, heads: int, latent: int, turned: int) -> None:
    lengths, size = [1, 300, 2049, 777, 16], dtype.itemsize
    made = [latents(n, heads, latent, turned, seed=i) for i, n in enumerate(lengths)]
    paper, how = LatentPaper(made, dtype), Attention(scaling=(latent + turned) ** -0.5, latent=True)
    mixed = [(0, 0, 1), (1, 0, 300), (2, 1537, 2049), (3, 776, 777), (4, 0, 16)]
    decodes = [(i, n - 1, n) for i, n in enumerate(lengths)] + [PADDING] * 3
    paper.check(mixed, how, Cut(latent_tile(heads, 512, itemsize=size), 1, None))
    for splits in (1, 4, 16, MOST_SPLITS):
        paper.check(decodes, how, Cut(1, splits, None))
    cut = Cut(latent_tile(heads, 1, itemsize=size, deterministic=True), 1, fixed_latent_tiles(size))
    paper.check(mixed, how, cut)
    whole = paper.attend([(2, 0, 2049)], how, cut)
    assert torch.equal(whole[1537:], paper.attend(mixed, how, cut)[301:813])
    assert torch.equal(whole[-1:], paper.attend(decodes, how, cut)[2:3])
