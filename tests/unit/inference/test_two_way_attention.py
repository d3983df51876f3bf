"""Attention of tokens that see some behind them, as an image's do: right, and the same bits anyhow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.native import Library
from inference.kernels.reference import Attention, Piece, Step, attend, write
from inference.kv_cache.blocks import PAGE
from tests.unit.inference.paged_attention import (
    FORMS,
    ISAS,
    LIBRARIES,
    Limits,
    Pieces,
    built,
    every_library,
    expected,
    native_step,
    page_table,
    run,
    tokens,
    whole,
)

torch.set_num_threads(1)
pytestmark = built

HOWS = {
    "all": Attention(scaling=0.2),
    "a window": Attention(scaling=0.2, window=9),
    "chunks": Attention(scaling=0.2, chunk=50),
    "a window over splits": Attention(scaling=0.2, window=300, softcap=20.0),
}
RUNS = ((3, 40), (41, 42), (200, 290), (290, 291), (300, 560))  # where tokens see each other


def limits_of(length: int, runs: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> Limits:
    limits = np.arange(1, length + 1)
    for first, end in runs:
        limits[first:end] = end
    return limits


@every_library
@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS.keys())
def test_it_agrees_with_float64(library: Library, how: Attention) -> None:
    sequence, limits = tokens(600, 4, 2, 32), limits_of(600, RUNS)
    (found,) = run(library, [sequence], whole([600]), how, limits=[limits])
    torch.testing.assert_close(found.double(), expected(sequence, how, limits), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS.keys())
def test_the_reference_kernel_agrees_with_float64(how: Attention) -> None:
    sequence, limits = tokens(90, 4, 2, 32), limits_of(90, ((3, 20), (30, 70)))
    pages = [5, 2, 9, 0, 7, 1]
    keys, values = (torch.full((10, PAGE, 2, 32), torch.nan) for _ in range(2))
    found = []
    for start, stop in ((0, 20), (10, 70), (70, 90)):
        step = Step([Piece(start, stop, pages, limits[start:stop])], torch.device("cpu"), torch.float32)
        write(keys, step.slots, sequence.key[start:stop])
        write(values, step.slots, sequence.value[start:stop])
        rows = attend(sequence.query[start:stop], keys, values, step, how)
        found.append(rows[20 - start :] if start == 10 else rows)
    torch.testing.assert_close(
        torch.cat(found).double(), expected(sequence, how, limits), atol=2e-5, rtol=1e-5
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_that_cut_no_run_company_and_threads_change_no_bit(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=3))
    sequences = [tokens(length, 4, 2, 16, seed=i) for i, length in enumerate(lengths)]
    limits, cuts = [], []
    for length in lengths:
        ends = sorted(data.draw(st.sets(st.integers(1, length), max_size=6)) | {length})
        runs = [each for each in pairwise([0, *ends]) if data.draw(st.booleans())]
        limits.append(limits_of(length, runs))
        inside = {at for first, end in runs for at in range(first + 1, end)}
        chosen = data.draw(st.sets(st.integers(1, length), max_size=4))
        cuts.append(sorted((chosen - inside) | {length}))
    how = data.draw(st.sampled_from([*HOWS.values()]))
    dtype, rounded = data.draw(st.sampled_from(FORMS))
    steps: list[Pieces] = []
    for i, ends in enumerate(cuts):
        for at, (start, stop) in enumerate(pairwise([0, *ends])):
            # What a prefix cache has of a run is some of it: the rest is computed, and sees all of it
            again = data.draw(st.integers(0, start)) if data.draw(st.booleans()) else start
            steps += [[] for _ in range(at + 1 - len(steps))]
            steps[at].append((i, again, stop))
    isa = data.draw(st.sampled_from(ISAS))
    one, other = (LIBRARIES[isa, data.draw(st.sampled_from([1, 3]))] for _ in range(2))
    found = run(one, sequences, steps, how, 1, dtype, rounded, limits)
    alone = [
        run(other, [sequence], whole([sequence.length]), how, 0, dtype, rounded, [limit])[0]
        for sequence, limit in zip(sequences, limits, strict=True)
    ]
    assert all(torch.equal(*pair) for pair in zip(found, alone, strict=True))


@pytest.mark.parametrize(
    "limits", [[1, 2, 4], [1, 1, 3], [3, 2, 3], [1, 2]], ids=["unwritten", "not itself", "falling", "too few"]
)
def test_limits_that_are_none_are_refused(limits: list[int]) -> None:
    with pytest.raises(AssertionError):
        native_step([(0, 0, 3)], page_table([3], 0, 0), [np.array(limits, dtype=np.int64)])
