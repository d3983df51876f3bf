"""The oracle is attention over whole sequences, in float64; the cache has NaN wherever nobody's keys are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from inference.kernels.gpu.tiles import (
    Tiles,
    choose_tiles,
    deterministic_tiles,
    query_tile,
)
from inference.kernels.reference import Attention, Piece, Step, attend, write
from inference.kv_cache.blocks import PAGE
from tests.unit.inference.kernels_gpu.packed import PADDING, SMALL, Cut, Paper
from tests.unit.inference.paged_attention import Pieces, Tokens, tokens

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
EVERYTHING = Attention(scaling=0.2, window=19, softcap=3.0, sinks=torch.linspace(-1, 2, 14))
FIXED = Cut(tile=8, tiles=SMALL)  # of tests of bits: one tile and one order for every step
SLOW: dict[str, Any] = {  # the interpreter is: looking for a smaller example would take minutes
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}
UNMASKED = replace(SMALL, unmasked=True)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Paper, Pieces, Attention, Cut]:
    """Draw a step of up to three sequences, each computing some of its last tokens, and padding."""
    group, kv_heads = draw(st.sampled_from([(1, 1), (4, 1), (7, 1), (3, 2), (17, 1)]))
    dim, value_dim = draw(st.sampled_from([(32, 32), (48, 32), (32, 72), (80, 80)]))
    lengths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    pieces = [(i, length - draw(st.integers(1, min(length, 8))), length) for i, length in enumerate(lengths)]
    pieces += [PADDING] * draw(st.integers(0, 1))
    heads = group * kv_heads
    slopes = torch.logspace(-2, 0, heads) if draw(st.booleans()) else None
    how = Attention(
        scaling=draw(st.sampled_from([0.1, 0.3])),
        window=draw(st.none() | st.integers(1, 40)),
        chunk=draw(st.none() | st.integers(1, 40)),
        softcap=None if slopes is not None else draw(st.none() | st.just(2.0)),
        slopes=slopes,
        sinks=torch.linspace(-2, 2, heads) if draw(st.booleans()) else None,
    )
    tiles = draw(st.sampled_from([SMALL, UNMASKED, Tiles(32, 4, 2)]))
    cut = Cut(draw(st.integers(3, 8)), draw(st.sampled_from([1, 1, 2, 4])), tiles)
    paper = Paper([tokens(n, heads, kv_heads, dim, value_dim, seed=i) for i, n in enumerate(lengths)])
    return paper, draw(st.permutations(pieces)), how, cut


@settings(max_examples=14, **SLOW)
@given(steps())
def test_a_step_computes_what_whole_sequences_would(step: tuple[Paper, Pieces, Attention, Cut]) -> None:
    paper, pieces, how, cut = step
    paper.check(pieces, how, cut)


@pytest.mark.parametrize(("dtype", "splits"), [(F16, 1), (BF16, 2), (F32, 2)], ids=str)
def test_all_features_together(dtype: torch.dtype, splits: int) -> None:
    lengths = [40, 1, 33, 6]
    paper = Paper([tokens(n, 14, 2, 48, 80, seed=i) for i, n in enumerate(lengths)], dtype)
    pieces = [(2, 32, 33), PADDING, (0, 33, 40), (1, 0, 1), (3, 0, 6)]
    paper.check(pieces, EVERYTHING, Cut(4, splits, None))


@pytest.mark.parametrize(("dtype", "splits"), [(BF16, 1), (F32, 2)], ids=str)
@pytest.mark.parametrize("tiles", [UNMASKED, None], ids=["unmasked", "masked"])
def test_scores_lose_by_distance(dtype: torch.dtype, splits: int, tiles: Tiles | None) -> None:
    paper = Paper([tokens(n, 6, 2, 32, seed=i) for i, n in enumerate([50, 1, 33])], dtype)
    how = Attention(scaling=0.2, slopes=torch.tensor([1.0, 0.5, 0.25, 0.06, 0.004, 0.0]))
    paper.check([(2, 32, 33), PADDING, (0, 41, 50), (1, 0, 1)], how, Cut(4, splits, tiles))


@pytest.mark.parametrize("splits", [1, 4])
def test_a_graph_of_decodes_with_padding(splits: int) -> None:
    paper = Paper([tokens(n, 4, 2, 32) for n in (1, 16, 50)])
    pieces = [(0, 0, 1), (1, 15, 16), PADDING, (2, 49, 50), PADDING]
    found = paper.attend(pieces, Attention(scaling=0.2), Cut(1, splits))
    assert (found[[2, 4]] == 0).all()
    paper.check(pieces, Attention(scaling=0.2), Cut(1, splits))


@pytest.mark.parametrize("splits", [1, 2])
def test_tokens_without_a_query_block_are_left_alone(splits: int) -> None:
    paper = Paper([tokens(20, 2, 2, 32)])
    batch = paper.batch([(0, 19, 20)], Cut(1, splits))
    assert [[0, -1], [0, -1]] == batch.query_blocks.tolist()
    batch = replace(batch, query_blocks=torch.full_like(batch.query_blocks, -1))
    paper.batch = lambda pieces, cut: batch  # type: ignore[method-assign]
    assert (paper.attend([(0, 19, 20)], Attention(scaling=0.2), Cut(1, splits)) == torch.inf).all()


@pytest.mark.parametrize("window", [1, 15, 16, 17])
def test_a_window_ends_at_any_place_of_a_block(window: int) -> None:
    paper = Paper([tokens(n, 2, 1, 32, seed=n) for n in (31, 32, 33, 49)])
    pieces = [(0, 30, 31), (1, 31, 32), (2, 30, 33), (3, 40, 49)]
    for cut in (Cut(3, 2), Cut(9, 1, UNMASKED)):
        paper.check(pieces, Attention(scaling=0.2, window=window), cut)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    ("how", "first"),
    [(Attention(scaling=0.2, window=20), 70 - 20 + 1), (Attention(scaling=0.2, chunk=32), 64)],
)
def test_what_is_before_the_window_or_the_chunk_is_not_read(how: Attention, first: int, splits: int) -> None:
    """`first` is what the first query sees: what is before is NaN in the cache."""
    paper, pieces = Paper([tokens(75, 2, 1, 32)]), [(0, 70, 75)]
    found = paper.attend(pieces, how, Cut(5, splits), hidden=first)
    assert torch.equal(paper.attend(pieces, how, Cut(5, splits)), found)


def test_two_sequences_share_a_prefix() -> None:
    trunk, one, other = tokens(32, 4, 2, 32), tokens(7, 4, 2, 32, seed=1), tokens(9, 4, 2, 32, seed=2)
    grown = [
        Tokens(*(torch.cat([getattr(trunk, name), getattr(end, name)]) for name in ("query", "key", "value")))
        for end in (one, other)
    ]
    table = torch.tensor([[3, 0, 5], [3, 0, 2]])
    pieces = [(0, 38, 39), (1, 30, 41)]
    Paper(grown, table=table).check(pieces, Attention(scaling=0.2), Cut(2))


@pytest.mark.parametrize("unmasked", [False, True])
def test_the_torch_kernel_gives_the_same(unmasked: bool) -> None:
    torch.manual_seed(0)
    how = Attention(scaling=0.2, window=None if unmasked else 20, softcap=4.0, sinks=torch.randn(6))
    paper = Paper([tokens(n, 6, 2, 32, seed=n) for n in (30, 45)])
    pieces = [(0, 29, 30), (1, 3, 45)]
    cache = torch.zeros(2, paper.blocks, PAGE, 2, 32)
    for index, _, stop in pieces:
        write(cache[0], paper.places(index, stop), paper.sequences[index].key[:stop])
        write(cache[1], paper.places(index, stop), paper.sequences[index].value[:stop])
    step = Step(
        [Piece(start, stop, paper.pages(index).tolist()) for index, start, stop in pieces],
        torch.device("cpu"), torch.float32,
    )  # fmt: skip
    query = torch.cat([paper.sequences[index].query[start:stop] for index, start, stop in pieces])
    wanted = attend(query, cache[0], cache[1], step, how)
    found = paper.attend(pieces, how, Cut(5, 1, replace(SMALL, unmasked=unmasked)))
    assert torch.allclose(wanted.double(), found, atol=1e-5)


@settings(max_examples=5, **SLOW)
@given(steps())
def test_the_company_changes_no_bit(step: tuple[Paper, Pieces, Attention, Cut]) -> None:
    paper, pieces, how, cut = step
    together = paper.attend(pieces, how, cut).split([stop - start for _, start, stop in pieces])
    for piece, found in zip(pieces, together, strict=True):
        if piece != PADDING:
            assert torch.equal(paper.attend([piece], how, cut), found)


@settings(max_examples=8, **SLOW)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.booleans(), st.none() | st.integers(1, 40))
def test_the_cut_of_a_prompt_changes_no_bit(sizes: list[int], sunk: bool, window: int | None) -> None:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    how = Attention(scaling=0.2, window=window, sinks=torch.tensor([0.3, -1]) if sunk else None)
    paper = Paper([tokens(ends[-1], 2, 1, 32)])
    whole = paper.attend([(0, 0, ends[-1])], how, FIXED)
    parts = [paper.attend([(0, start, stop)], how, FIXED) for start, stop in pairwise(ends)]
    assert torch.equal(whole, torch.cat(parts))


def test_the_deterministic_choice_changes_no_bit_between_prompts_and_decodes() -> None:
    """It takes one tile whatever the step, so that a decode's programs are those of a prompt."""
    heads, kv_heads, dim = 6, 2, 64
    tiles = {query_tile(heads, kv_heads, n, dim=dim, deterministic=True) for n in (1, 2, 50, 5000)}
    assert 1 == len(tiles)
    cut = Cut(tiles.pop(), 1, deterministic_tiles(dim, 2))
    paper = Paper([tokens(70, heads, kv_heads, dim)], torch.bfloat16)
    how = Attention(scaling=0.2)
    whole = paper.attend([(0, 0, 70)], how, cut)
    decoded = [paper.attend([(0, at, at + 1)], how, cut) for at in (0, 15, 16, 64, 69)]
    assert torch.equal(whole[[0, 15, 16, 64, 69]], torch.cat(decoded))


@pytest.mark.gpu
@pytest.mark.parametrize(  # few, since a dozen kernels are compiled for each
    ("dtype", "heads", "kv_heads", "dim", "value_dim"),
    [
        (BF16, 32, 8, 128, 128),
        (BF16, 14, 2, 64, 64),
        (BF16, 8, 4, 256, 256),
        (BF16, 16, 16, 192, 128),
        (BF16, 71, 1, 64, 64),
        (F16, 32, 32, 80, 80),
        (F32, 9, 3, 64, 64),
        (F32, 32, 8, 128, 128),
    ],
    ids=str,
)
def test_real_sizes(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, value_dim: int) -> None:
    lengths = [1, 300, 2049, 777, 16]
    made = [tokens(n, heads, kv_heads, dim, value_dim, seed=i) for i, n in enumerate(lengths)]
    paper = Paper(made, dtype)
    mixed = [(0, 0, 1), (1, 0, 300), (2, 1537, 2049), (3, 776, 777), (4, 0, 16)]
    decodes = [(i, n - 1, n) for i, n in enumerate(lengths)] + [PADDING] * 3
    sinks = torch.linspace(-1, 2, heads)
    hows = (Attention(scaling=dim**-0.5), Attention(scaling=dim**-0.5, window=500, softcap=30.0, sinks=sinks))
    wide, size = max(dim, value_dim), dtype.itemsize
    fixed = query_tile(heads, kv_heads, 1, dim=wide, itemsize=size, deterministic=True)
    for how in hows:
        paper.check(mixed, how, Cut(query_tile(heads, kv_heads, 512, dim=wide, itemsize=size), 1, None))
        for splits in (1, 4, 16):
            paper.check(decodes, how, Cut(1, splits, choose_tiles(wide, size, decodes=True)))
        cut = Cut(fixed, 1, deterministic_tiles(wide, size))
        paper.check(mixed, how, cut)
        whole = paper.attend([(2, 0, 2049)], how, cut)
        assert torch.equal(whole[1537:], paper.attend(mixed, how, cut)[301:813])
        assert torch.equal(whole[-1:], paper.attend(decodes, how, cut)[2:3])


@pytest.mark.gpu
def test_pages_beyond_two_to_the_31st_number_are_found() -> None:
    paper = Paper([tokens(33, 2, 1, 64)], torch.bfloat16, torch.tensor([[2**21 + 7, 3, 2**21 + 99]]))
    paper.check([(0, 30, 33)], Attention(scaling=0.2), Cut(3, 1, Tiles(32, 4, 2)))
