"""Attention in C: right by a float64 oracle, and the same bits however a step is put together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import dtype as Dtype

from inference.kernels.arena import HUGE_PAGE
from inference.kernels.native import Library
from inference.kernels.native_attention import NativeCacheLayer, arrays_of, cache_layers
from inference.kernels.reference import Attention, Piece, Step, attend, write
from inference.models.paged import LayerShape
from tests.unit.inference.paged_attention import (
    FORMS,
    ISAS,
    LIBRARIES,
    Pieces,
    Tokens,
    built,
    every_library,
    expected,
    native_step,
    page_table,
    run,
    steps_of,
    tokens,
    whole,
)

torch.set_num_threads(1)
pytestmark = built
SPLIT = 256  # of attention.h: keys are reduced in pieces of this many


def narrowed(sequence: Tokens) -> Tokens:
    """Return what a cache in bfloat16 holds of a sequence."""
    key, value = (each.bfloat16().float() for each in (sequence.key, sequence.value))
    return Tokens(sequence.query, key, value)


def one_by_one(length: int) -> list[Pieces]:
    return [[(0, at, at + 1)] for at in range(length)]


CASES = {
    "three heads to a key": (tokens(300, 9, 3, 64), Attention(scaling=0.125)),
    "a key for each head": (tokens(40, 5, 5, 80), Attention(scaling=0.1)),
    "eight heads to a key": (tokens(70, 16, 2, 96), Attention(scaling=0.1)),
    "seventy-one heads to a key": (tokens(20, 71, 1, 64), Attention(scaling=0.125)),
    "large heads": (tokens(2 * SPLIT + 1, 4, 1, 128), Attention(scaling=0.09)),
    "largest heads": (tokens(35, 2, 1, 256), Attention(scaling=0.0625)),
    "odd dims": (tokens(50, 6, 2, 20, 33), Attention(scaling=0.2)),
    "single numbers": (tokens(33, 2, 1, 1, 1), Attention(scaling=1.0)),
    "a window": (tokens(600, 4, 2, 32), Attention(scaling=0.2, window=100)),
    "a window of one": (tokens(40, 4, 2, 32), Attention(scaling=0.2, window=1)),
    "a window over splits": (tokens(600, 2, 1, 16), Attention(scaling=0.2, window=SPLIT)),
    "chunks": (tokens(600, 4, 2, 32), Attention(scaling=0.2, chunk=96)),
    "chunks of one": (tokens(40, 4, 2, 32), Attention(scaling=0.2, chunk=1)),
    "chunks over splits, with a window": (
        tokens(600, 2, 1, 16),
        Attention(scaling=0.2, chunk=SPLIT + 3, window=SPLIT - 5),
    ),
    "a softcap": (tokens(280, 4, 2, 32), Attention(scaling=0.5, softcap=5.0)),
    "sinks": (tokens(280, 4, 2, 32), Attention(scaling=0.2, sinks=torch.tensor([0.0, 3.0, -80.0, 90.0]))),
    "slopes": (tokens(600, 4, 2, 32), Attention(scaling=0.2, slopes=torch.tensor([0.5, 0.06, 0.004, 0.0]))),
    "slopes, sinks and a window": (
        tokens(530, 4, 2, 24, 40),
        Attention(scaling=0.3, window=260, sinks=torch.arange(4.0), slopes=torch.linspace(0.001, 0.2, 4)),
    ),
    "all of it": (
        tokens(530, 4, 2, 24, 40),
        Attention(scaling=0.3, window=260, softcap=20.0, sinks=torch.arange(4.0)),
    ),
}


@every_library
@pytest.mark.parametrize(("sequence", "how"), CASES.values(), ids=CASES.keys())
def test_it_agrees_with_float64(library: Library, sequence: Tokens, how: Attention) -> None:
    (found,) = run(library, [sequence], whole([sequence.length]), how)
    torch.testing.assert_close(found.double(), expected(sequence, how), atol=2e-5, rtol=1e-5)


@every_library
@pytest.mark.parametrize(("sequence", "how"), CASES.values(), ids=CASES.keys())
def test_one_token_at_a_time_gives_the_same_bits(library: Library, sequence: Tokens, how: Attention) -> None:
    (at_once,) = run(library, [sequence], whole([sequence.length]), how)
    (by_token,) = run(library, [sequence], one_by_one(sequence.length), how, seed=1)
    assert torch.equal(at_once, by_token)


@every_library
@pytest.mark.parametrize(("sequence", "how"), CASES.values(), ids=CASES.keys())
def test_a_bfloat16_cache_differs_by_the_rounding_of_keys_and_values_alone(
    library: Library, sequence: Tokens, how: Attention
) -> None:
    (found,) = run(library, [sequence], whole([sequence.length]), how, dtype=torch.bfloat16)
    torch.testing.assert_close(found.double(), expected(narrowed(sequence), how), atol=2e-5, rtol=1e-5)
    (wide,) = run(library, [narrowed(sequence)], whole([sequence.length]), how)
    assert torch.equal(found, wide)  # so the arithmetic is float32's
    (by_token,) = run(library, [sequence], one_by_one(sequence.length), how, seed=1, dtype=torch.bfloat16)
    assert torch.equal(found, by_token)


@pytest.mark.parametrize(("sequence", "how"), CASES.values(), ids=CASES.keys())
def test_rounded_attention_differs_by_the_rounding_of_queries_and_weights(
    sequence: Tokens, how: Attention
) -> None:
    """A weight is off by 2^-8 of it at most, and so are values' sums by that of the sums of their sizes."""
    held = narrowed(sequence)
    query = (sequence.query * how.scaling).bfloat16().float() / how.scaling
    wanted = expected(Tokens(query, held.key, held.value), how)
    sizes = expected(Tokens(query, held.key, held.value.abs()), how)
    for (isa, threads), library in LIBRARIES.items():
        arguments = (library, [sequence], whole([sequence.length]), how, 0, torch.bfloat16)
        (found,), (plain,) = run(*arguments, rounded=True), run(*arguments)
        if library.has_bf16:
            assert ((found - wanted).abs() <= (2**-8 + 1e-5) * sizes + 1e-5).all(), (isa, threads)
            assert torch.equal(found, plain) == (1 in (how.window, how.chunk))  # whose only weight is 1
        else:
            assert torch.equal(found, plain)


@every_library
@pytest.mark.parametrize(("sequence", "how"), CASES.values(), ids=CASES.keys())
def test_rounded_attention_one_token_at_a_time_gives_the_same_bits(
    library: Library, sequence: Tokens, how: Attention
) -> None:
    (at_once,) = run(library, [sequence], whole([sequence.length]), how, 0, torch.bfloat16, rounded=True)
    by_token = one_by_one(sequence.length)
    (found,) = run(library, [sequence], by_token, how, 1, torch.bfloat16, rounded=True)
    assert torch.equal(at_once, found)


@every_library
def test_every_float_is_rounded_to_the_nearest_bfloat16_of_two_the_even_one(library: Library) -> None:
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    ends = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    floats = (upper[:, None] | ends).view(torch.float32).view(-1, 1, 256)
    layer = NativeCacheLayer(library, LayerShape(1, 256, 256), len(floats) // 16, torch.bfloat16)
    step = native_step([(0, 0, len(floats))], page_table([len(floats)], spare=0, seed=0))
    layer.attend(torch.zeros_like(floats), floats, floats, step, Attention(scaling=1.0, window=1))
    pages = page_table([len(floats)], spare=0, seed=0)[0].tolist()
    wanted = floats.view(-1).bfloat16()
    # (page, kv_head, position pair, dim, 2) and (page, kv_head, dim pair, position, 2)
    values, keys = layer.values[pages].transpose(3, 4), layer.keys[pages].transpose(2, 3)
    for kept in (values.reshape(-1), keys.reshape(-1)):
        assert torch.equal(kept.isnan(), wanted.isnan())
        assert torch.equal(kept[~kept.isnan()].view(torch.int16), wanted[~wanted.isnan()].view(torch.int16))


def test_it_agrees_with_the_reference_kernel() -> None:
    library = next(iter(LIBRARIES.values()))
    sequence, how = tokens(90, 6, 2, 32), Attention(scaling=0.2, window=50)
    keys, values = (torch.zeros(8, 16, 2, 32) for _ in range(2))
    step = Step([Piece(0, 90, [3, 1, 4, 0, 5, 2])], torch.device("cpu"), torch.float32)
    write(keys, step.slots, sequence.key)
    write(values, step.slots, sequence.value)
    (found,) = run(library, [sequence], whole([sequence.length]), how)
    torch.testing.assert_close(found, attend(sequence.query, keys, values, step, how), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [SPLIT - 1, SPLIT, SPLIT + 1, 5 * SPLIT + 3])
@pytest.mark.parametrize(("dtype", "rounded"), FORMS)
def test_the_number_of_threads_changes_no_bit(length: int, dtype: Dtype, rounded: bool) -> None:
    sequence, how = tokens(length, 3, 1, 16), Attention(scaling=0.25)
    steps = [[(0, 0, length - 1)], [(0, length - 1, length)]]  # the last one splits its keys over threads
    for isa in ISAS:
        alone, together = (
            run(LIBRARIES[isa, threads], [sequence], steps, how, dtype=dtype, rounded=rounded)[0]
            for threads in (1, 3)
        )
        assert torch.equal(alone, together)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_batches_pieces_pages_and_threads_change_no_bit(data: st.DataObject) -> None:
    group, dim = data.draw(st.sampled_from([(1, 8), (3, 16), (4, 24), (7, 32), (3, 64), (5, 160)]))
    lengths = data.draw(st.lists(st.integers(1, SPLIT + 40), min_size=1, max_size=4))
    softcap, slopes = data.draw(
        st.sampled_from([(None, None), (10.0, None), (None, torch.logspace(-3, 0, 2 * group))])
    )
    how = Attention(
        scaling=0.3,
        window=data.draw(st.sampled_from([None, 1, 17, SPLIT])),
        chunk=data.draw(st.sampled_from([None, 1, 23, SPLIT + 1])),
        softcap=softcap,
        slopes=slopes,
        sinks=data.draw(st.sampled_from([None, torch.linspace(-1, 2, 2 * group)])),
    )
    sequences = [tokens(length, 2 * group, 2, dim, seed=i) for i, length in enumerate(lengths)]
    isa = data.draw(st.sampled_from(ISAS))
    threads = data.draw(st.sampled_from([1, 3]))
    form = data.draw(st.sampled_from(FORMS))
    steps, seed = data.draw(steps_of(lengths)), data.draw(st.integers(0, 9))
    found = run(LIBRARIES[isa, threads], sequences, steps, how, seed, *form)
    for sequence, rows in zip(sequences, found, strict=True):
        (alone,) = run(LIBRARIES[isa, 1], [sequence], whole([sequence.length]), how, 0, *form)
        assert torch.equal(alone, rows)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dims"),
    [(9, 3, (64, 64)), (30, 6, (16, 24)), (8, 8, (9, 7)), (27, 27, (8, 8)), (40, 1, (32, 80))],
)
def test_many_sequences_that_go_on_together_get_the_bits_that_each_gets_alone(
    threads: int, heads: int, kv_heads: int, dims: tuple[int, int]
) -> None:
    lengths = [
        1,
        2,
        16,
        17,
        31,
        100,
        SPLIT,
        SPLIT + 1,
        SPLIT + 60,
        40,
        41,
        42,
    ]  # enough to read heads side by side
    sequences = [tokens(length, heads, kv_heads, *dims, seed=i) for i, length in enumerate(lengths)]
    prompts = [(i, 0, length - 1) for i, length in enumerate(lengths) if length > 1]
    steps = [prompts, [(i, length - 1, length) for i, length in enumerate(lengths)]]
    for how in (
        Attention(scaling=0.3),
        Attention(scaling=0.3, window=20, softcap=9.0, sinks=torch.ones(heads)),
    ):
        for isa in ISAS:
            for form in FORMS:
                found = run(LIBRARIES[isa, threads], sequences, steps, how, 1, *form)
                for sequence, rows in zip(sequences, found, strict=True):
                    (alone,) = run(LIBRARIES[isa, 1], [sequence], whole([sequence.length]), how, 0, *form)
                    assert torch.equal(alone, rows)


def test_queries_keys_and_values_may_be_views() -> None:
    library = next(iter(LIBRARIES.values()))
    sequence, how = tokens(20, 4, 2, 16), Attention(scaling=0.25)
    parts = (sequence.query, sequence.key, sequence.value)
    turned = Tokens(*[each.transpose(0, 1).contiguous().transpose(0, 1) for each in parts])
    spread = Tokens(*[each.mT.contiguous().mT for each in parts])
    plain, as_turned, as_spread = (
        run(library, [each], whole([each.length]), how)[0] for each in (sequence, turned, spread)
    )
    assert torch.equal(plain, as_turned)
    assert torch.equal(plain, as_spread)


def test_large_scores_neither_overflow_nor_vanish() -> None:
    sequence = tokens(300, 2, 1, 8)
    huge = Tokens(sequence.query * 1e3, sequence.key * 1e3, sequence.value)
    for library in LIBRARIES.values():
        (found,) = run(library, [huge], whole([huge.length]), Attention(scaling=1.0))
        torch.testing.assert_close(
            found.double(), expected(huge, Attention(scaling=1.0)), atol=1e-2, rtol=1e-2
        )


def test_one_sequences_nan_stays_its_own() -> None:
    library = next(iter(LIBRARIES.values()))
    sick, well = tokens(40, 3, 1, 16, seed=1), tokens(40, 3, 1, 16, seed=2)
    sick.value[:] = torch.nan
    found = run(library, [sick, well], whole([40, 40]), Attention(scaling=0.25))
    assert found[0].isnan().all()
    assert torch.equal(found[1], run(library, [well], whole([well.length]), Attention(scaling=0.25))[0])


@pytest.mark.parametrize(("dtype", "rounded"), FORMS)
@pytest.mark.parametrize("dim", [16, 64])
def test_a_nan_that_a_token_does_not_see_is_nothing_to_it(dim: int, dtype: Dtype, rounded: bool) -> None:
    sequence, how = tokens(40, 3, 1, dim), Attention(scaling=0.25, window=7)
    sick = Tokens(sequence.query, sequence.key.clone(), sequence.value.clone())
    sick.key[20:22], sick.value[20:22] = torch.nan, torch.inf
    for library in LIBRARIES.values():
        well, found = (
            run(library, [each], whole([40]), how, 0, dtype, rounded)[0] for each in (sequence, sick)
        )
        assert torch.equal(found[:20], well[:20])
        assert found[20:28].isnan().all()
        assert torch.equal(found[28:], well[28:])


@pytest.mark.parametrize(
    ("start", "stop", "slot"),
    [(0, 0, 0), (-1, 1, 0), (0, 33, 0), (0, 1, 2)],
    ids=["empty", "before", "behind", "slot"],
)
def test_a_step_outside_its_table_is_refused(start: int, stop: int, slot: int) -> None:
    with pytest.raises(AssertionError):
        native_step([(slot, start, stop)], np.zeros((2, 2), dtype=np.int32))


def test_a_step_that_moves_behind_its_table_or_by_more_than_a_token_is_refused() -> None:
    step = native_step([(0, 30, 31), (1, 3, 4)], np.zeros((2, 2), dtype=np.int32))
    step.move(np.array([31, 4]), np.array([32, 5]))
    assert step.last == 31
    with pytest.raises(AssertionError, match="within its pages"):
        step.move(np.array([32, 5]), np.array([33, 6]))
    with pytest.raises(AssertionError, match="a token of each"):
        step.move(np.array([29, 4]), np.array([31, 5]))
    with pytest.raises(AssertionError, match="int64"):
        step.move(np.array([29, 4], dtype=np.int32), np.array([30, 5]))
    assert step.last == 31
    several = native_step([(0, 0, 2)], np.zeros((2, 2), dtype=np.int32))
    with pytest.raises(AssertionError, match="a token of each"):
        several.move(np.array([2]), np.array([3]))


def test_no_two_arrays_of_a_cache_begin_at_the_same_place_of_a_page() -> None:
    shapes = [LayerShape(4, 64, 64)] * 4
    layers = cache_layers(LIBRARIES[ISAS[0], 1], shapes, 2048, torch.bfloat16)
    arrays = arrays_of(layers)
    assert len({array.data_ptr() % HUGE_PAGE for array in arrays}) == len(arrays)
