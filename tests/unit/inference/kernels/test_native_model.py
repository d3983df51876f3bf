"""A whole model in C: right by a float64 oracle, the same bits in any batch, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_layers import StackShape
from inference.kernels.native_model import EndWeights, Logits, NativeModel
from inference.kernels.native_rows import row_statistics
from tests.unit.inference.paged_attention import (
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
from tests.unit.inference.paper_layers import NORMS, forward, native, random_layer, rotary

torch.set_num_threads(1)
pytestmark = built
SHAPE = StackShape(hidden=50, heads=6, kv_heads=2, head_dim=16, inner=96, eps=1e-5, scaling=0.25)
PAPERS = [random_layer(SHAPE, NORMS[:2], seed) for seed in range(2)]
WORDS = 75  # no whole panels
GENERATOR = torch.Generator().manual_seed(4)
TABLE = torch.randn(WORDS, SHAPE.hidden, generator=GENERATOR).bfloat16().float()
HEAD = torch.randn(WORDS, SHAPE.hidden, generator=GENERATOR)
NORM = 1 + 0.3 * torch.randn(SHAPE.hidden, generator=GENERATOR)
COS, SIN = rotary(torch.arange(512), SHAPE.head_dim)


def model(
    library: Library, ends: EndWeights, blocks: int, kind: WeightKind = WeightKind.FLOAT32
) -> NativeModel:
    return NativeModel(library, native(library, PAPERS, SHAPE, blocks, kind), ends)


def plain_ends(library: Library, kind: WeightKind = WeightKind.FLOAT32) -> EndWeights:
    head = PackedLinear.pack(library, HEAD, None, kind)
    return EndWeights(table=TABLE, head=head, norm=NORM, eps=1e-3)


def prompt(length: int, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (length,), generator=torch.Generator().manual_seed(seed + length))


def run(made: NativeModel, prompts: list[Tensor], steps: list[Pieces], seed: int = 0) -> list[Tensor]:
    """Return the logits of every token of each prompt (tokens, words), computed by steps of pieces."""
    table = page_table([len(each) for each in prompts], spare=1, seed=seed)
    found = [torch.full((len(each), WORDS), torch.nan) for each in prompts]
    for pieces in steps:
        ids = torch.cat([prompts[i][start:stop] for i, start, stop in pieces]).numpy()
        rows = made.run(ids, np.arange(len(ids)), [COS], [SIN], native_step(pieces, table)).values
        for (i, start, stop), part in zip(pieces, rows.split([b - a for _, a, b in pieces]), strict=True):
            found[i][start:stop] = part
    return found


def wanted_logits(ids: Tensor, ends: EndWeights) -> Tensor:
    """Return what the ends and the layers give in float64."""
    x = TABLE[ids] * ends.embedding_factor
    x = forward(PAPERS, SHAPE, x, [(COS[: len(ids)], SIN[: len(ids)])])
    x = x / (x.square().mean(-1, keepdim=True) + ends.eps).sqrt() * ends.norm.double()
    return x * ends.head_factor @ HEAD.double().T


@every_library
@pytest.mark.parametrize("length", [5, 96, 97, 400], ids=["few rows", "a tile", "two tiles", "many rows"])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (7.5, 0.25)], ids=["plain", "factors"])
@pytest.mark.parametrize(
    "table",
    [torch.float32, torch.bfloat16, WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.FLOAT16],
    ids=str,
)
def test_it_agrees_with_float64(
    library: Library, length: int, factors: tuple[float, float], table: torch.dtype | WeightKind
) -> None:
    packed = isinstance(table, WeightKind)
    ends = replace(
        plain_ends(library),
        table=PackedLinear.pack(library, TABLE, None, table) if packed else TABLE.to(table),
        embedding_factor=factors[0],
        head_factor=factors[1],
    )
    ids = prompt(length)
    (found,) = run(model(library, ends, page_count([length], 1)), [ids], whole([length]))
    wanted = wanted_logits(ids, ends)
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@every_library
@pytest.mark.parametrize("norm", [False, True], ids=["positions", "positions and a norm"])
def test_rows_of_positions_are_added_and_normalised(library: Library, norm: bool) -> None:
    lengths, shape = [40, 17, 1], replace(SHAPE, centred=True)
    papers = [random_layer(shape, NORMS[:2], seed, gates=False) for seed in range(2)]
    weights = torch.stack([NORM, NORM.flip(0)])
    positions = torch.randn(max(lengths), SHAPE.hidden, generator=torch.Generator().manual_seed(5))
    ends = replace(plain_ends(library), norm=weights, eps=shape.eps, positions=positions)
    ends = replace(ends, first_norm=weights.flip(1)) if norm else ends
    stack = native(library, papers, shape, page_count(lengths, 1), WeightKind.FLOAT32)
    prompts = [prompt(length) for length in lengths]
    steps: list[Pieces] = [[(0, 0, 11), (1, 0, 16)], [(1, 16, 17), (0, 11, 12), (2, 0, 1)], [(0, 12, 40)]]
    found = run(NativeModel(library, stack, ends), prompts, steps)
    for ids, logits in zip(prompts, found, strict=True):
        x = (TABLE[ids] + positions[: len(ids)]).double()
        x = layer_norm(x, weights.flip(1).double(), shape.eps) if norm else x
        x = forward(papers, shape, x, [(COS[: len(ids)], SIN[: len(ids)])])
        wanted = layer_norm(x, weights.double(), shape.eps) @ HEAD.double().T
        assert (logits - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def layer_norm(x: Tensor, weights: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *weights, eps)


def test_a_position_without_a_row_is_not_computed() -> None:
    library = next(iter(LIBRARIES.values()))
    ends = replace(plain_ends(library), positions=torch.zeros(8, SHAPE.hidden))
    with pytest.raises(AssertionError, match="what depends on positions is known of each"):
        run(model(library, ends, page_count([9], 1)), [prompt(9)], whole([9]))


def test_a_table_of_float16_is_widened_exactly() -> None:
    library = next(iter(LIBRARIES.values()))
    ids = prompt(9)
    half = TABLE.half()
    logits = [
        run(model(library, replace(plain_ends(library), table=t), page_count([9], 1)), [ids], whole([9]))[0]
        for t in (half, half.float())
    ]
    assert torch.equal(*logits)


@every_library
@settings(max_examples=15)
@given(data=st.data())
def test_a_token_has_the_same_bits_alone_and_in_any_batch(library: Library, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=4))
    kind = data.draw(st.sampled_from([WeightKind.FLOAT32, WeightKind.INT8]))
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    steps = data.draw(steps_of(lengths))
    made = model(library, plain_ends(library, kind), page_count(lengths, 1), kind)
    together = run(made, prompts, steps, seed=1)
    for ids, found in zip(prompts, together, strict=True):
        alone = model(library, plain_ends(library, kind), page_count([len(ids)], 1), kind)
        assert torch.equal(run(alone, [ids], whole([len(ids)]))[0], found)


@every_library
def test_rows_are_chosen_and_their_statistics_are_those_of_their_logits(library: Library) -> None:
    ids, table = prompt(20), page_table([20], spare=1, seed=0)
    made = model(library, plain_ends(library), page_count([20], 1))

    def logits(rows: list[int]) -> Logits:
        return made.run(
            ids.numpy(), np.array(rows, dtype=np.int64), [COS], [SIN], native_step([(0, 0, 20)], table)
        )

    every, some = logits(list(range(20))), logits([3, 11, 19])
    assert torch.equal(some.values, every.values[[3, 11, 19]])
    tokens, maxima, totals = row_statistics(library, some.values)
    assert tokens.tolist() == some.tokens.tolist() == some.values.argmax(1).tolist()
    assert maxima.tolist() == some.maxima.tolist()
    assert totals.tolist() == some.totals.tolist()


@every_library
def test_a_step_without_rows_still_fills_the_cache(library: Library) -> None:
    ids, table = prompt(20), page_table([20], spare=1, seed=0)
    made = model(library, plain_ends(library), page_count([20], 1))
    none = np.empty(0, dtype=np.int64)
    first = made.run(ids[:19].numpy(), none, [COS], [SIN], native_step([(0, 0, 19)], table))
    assert first.values.shape == (0, WORDS)
    last = made.run(
        ids[19:].numpy(), np.zeros(1, dtype=np.int64), [COS], [SIN], native_step([(0, 19, 20)], table)
    )
    (wanted,) = run(model(library, plain_ends(library), page_count([20], 1)), [ids], whole([20]))
    assert torch.equal(wanted[19:], last.values)


@pytest.mark.parametrize("id", [-1, WORDS])
def test_an_id_that_the_table_does_not_have_is_refused(id: int) -> None:
    library = next(iter(LIBRARIES.values()))
    made = model(library, plain_ends(library), page_count([1], 1))
    step = native_step([(0, 0, 1)], page_table([1], spare=1, seed=0))
    with pytest.raises(IndexError, match="ids must be from 0 to 74"):
        made.run(np.array([id]), np.zeros(1, dtype=np.int64), [COS], [SIN], step)


def test_tables_are_looked_at_again_where_others_stand_in_their_places() -> None:
    library = next(iter(LIBRARIES.values()))
    made = model(library, plain_ends(library), page_count([9], 1))
    step = native_step([(0, 8, 9)], page_table([9], spare=1, seed=0))
    ids = np.zeros(1, dtype=np.int64)
    with pytest.raises(AssertionError, match="an embedding for each"):
        made.run(ids, ids, (), (), step)
    cosines, sines = [COS], [SIN]
    made.run(ids, ids, cosines, sines, step)
    cosines[0] = COS[:8]
    with pytest.raises(AssertionError, match="a rotation for each position"):
        made.run(ids, ids, cosines, sines, step)


def test_tables_that_end_before_the_step_are_refused() -> None:
    library = next(iter(LIBRARIES.values()))
    made = model(library, plain_ends(library), page_count([9], 1))
    step = native_step([(0, 8, 9)], page_table([9], spare=1, seed=0))
    with pytest.raises(AssertionError, match="a rotation for each position"):
        made.run(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), [COS[:8]], [SIN[:8]], step)


@every_library
@pytest.mark.parametrize("length", [6, 70], ids=["few rows", "many rows"])
def test_rows_that_are_given_stand_for_tokens_without_any_factor(library: Library, length: int) -> None:
    ends = replace(plain_ends(library), embedding_factor=7.5)
    ids, pieces, table = prompt(length), [(0, 0, length)], page_table([length], spare=1, seed=0)
    given = TABLE[ids[1::3]] * 7.5
    numbered = ids.clone()
    numbered[1::3] = WORDS + torch.arange(len(given))
    found = [
        model(library, ends, page_count([length], spare=1)).run(
            each.numpy(), np.arange(length), [COS], [SIN], native_step(pieces, table), given=rows
        )
        for each, rows in ((ids, None), (numbered, given))
    ]
    assert torch.equal(found[0].values, found[1].values)
    with pytest.raises(IndexError, match=f"from 0 to {WORDS + len(given) - 2}"):
        model(library, ends, page_count([length], spare=1)).run(
            numbered.numpy(), np.arange(length), [COS], [SIN], native_step(pieces, table), given=given[1:]
        )


@every_library
@pytest.mark.parametrize("length", [6, 70], ids=["few rows", "many rows"])
def test_rotations_by_row_are_those_by_position_where_they_are_the_same(
    library: Library, length: int
) -> None:
    ends = plain_ends(library)
    prompts, steps = [prompt(length), prompt(5)], [[(0, 0, length - 2), (1, 0, 5)], [(0, length - 2, length)]]
    by_position = run(model(library, ends, page_count([length, 5], spare=1)), prompts, steps)
    table = page_table([length, 5], spare=1, seed=0)
    made = model(library, ends, page_count([length, 5], spare=1))
    found = [torch.empty(len(each), WORDS) for each in prompts]
    for pieces in steps:
        ids = torch.cat([prompts[i][start:stop] for i, start, stop in pieces]).numpy()
        at = torch.cat([torch.arange(start, stop) for _, start, stop in pieces])
        step = native_step(pieces, table)
        logits = made.run(ids, np.arange(len(ids)), [COS[at]], [SIN[at]], step, by_row=True).values
        for (i, start, stop), part in zip(pieces, logits.split([b - a for _, a, b in pieces]), strict=True):
            found[i][start:stop] = part
    assert all(torch.equal(*each) for each in zip(found, by_position, strict=True))
