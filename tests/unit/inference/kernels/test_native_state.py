"""Layers that keep a state: what C computes is the textbook's, the same bits in pieces and at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import Library  # noqa: E402
from inference.kernels.native_recurrence import NativeStates  # noqa: E402
from inference.kernels.native_state import Convolution, NativeRuns  # noqa: E402
from inference.kernels.state_parts import Heads  # noqa: E402
from tests.unit.inference.paged_attention import built, every_library  # noqa: E402
from tests.unit.inference.recurrences import Delta, Recurrence, Scan, Scan2, drawn  # noqa: E402

pytestmark = built
HEADS = [Heads(2, 4, 16, 8), Heads(1, 3, 4, 33), Heads(4, 4, 128, 128), Heads(2, 6, 256, 64)]
every_shape = pytest.mark.parametrize("heads", HEADS, ids=str)


def runs(*pieces: tuple[int, int, int]) -> NativeRuns:
    """Return a step of pieces: how many tokens, where their state is read (-1: nowhere) and written."""
    sizes, reads, writes = (np.array(each, dtype=np.int64) for each in zip(*pieces, strict=True))
    return NativeRuns(np.cumsum(sizes), reads, writes)


def cut_runs(bounds: list[int]) -> list[NativeRuns]:
    """Return steps of one sequence's pieces, which read one place and write to the other in turn."""
    sizes = [stop - start for start, stop in pairwise(bounds)]
    return [runs((size, at % 2 if at else -1, 1 - at % 2)) for at, size in enumerate(sizes)]


def cuts(tokens: int) -> st.SearchStrategy[list[int]]:
    inner = st.sets(st.integers(1, tokens - 1), max_size=6)
    return inner.map(lambda found: [0, *sorted(found), tokens])


RECURRENCES = pytest.mark.parametrize("recurrence", [Delta, Scan2, Scan])


def in_pieces(of: Recurrence, bounds: list[int]) -> tuple[Tensor, Tensor]:
    """Return what comes of a sequence in pieces, and its last state."""
    states = of.states(2)
    steps = cut_runs(bounds)
    spans = [slice(*each) for each in pairwise(bounds)]
    found = [of(span, states, step) for span, step in zip(spans, steps, strict=True)]
    return torch.cat(found), states[len(steps) % 2]


@every_library
@every_shape
@RECURRENCES
def test_recurrence_is_the_textbooks(library: Library, heads: Heads, recurrence: type[Recurrence]) -> None:
    of = recurrence(NativeStates(library), heads, tokens=37)
    found, _ = in_pieces(of, [0, 37])
    expected = of.textbook()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@every_library
@RECURRENCES
@settings(max_examples=20)
@given(bounds=cuts(40))
def test_recurrence_has_the_same_bits_in_any_pieces(
    library: Library, recurrence: type[Recurrence], bounds: list[int]
) -> None:
    of = recurrence(NativeStates(library), HEADS[0], tokens=40)
    for found, whole in zip(in_pieces(of, bounds), in_pieces(of, [0, 40]), strict=True):
        assert torch.equal(found, whole)


@every_library
@RECURRENCES
def test_sequences_of_a_step_know_nothing_of_each_other(
    library: Library, recurrence: type[Recurrence]
) -> None:
    of = recurrence(NativeStates(library), HEADS[0], tokens=12)
    states = of.states(4)
    together = of(slice(0, 12), states, runs((5, -1, 3), (7, -1, 0)))
    assert torch.equal(together[:5], in_pieces(of, [0, 12])[0][:5])
    rest = of(slice(5, 12), of.states(1), runs((7, -1, 0)))
    assert torch.equal(together[5:], rest)
    assert not states[1:3].any()


@every_library
def test_place_that_is_read_stays_as_it_is(library: Library) -> None:
    of = Delta(NativeStates(library), HEADS[0], tokens=8)
    states = of.states(2)
    of(slice(0, 5), states, runs((5, -1, 1)))
    before = states[1].clone()
    first = of(slice(5, 8), states, runs((3, 1, 0)))
    assert torch.equal(states[1], before)
    assert torch.equal(of(slice(5, 8), states, runs((3, 1, 0))), first)


@every_library
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@settings(max_examples=20)
@given(bounds=cuts(23))
def test_convolution_is_torchs_and_has_the_same_bits_in_any_pieces(
    library: Library, silu: bool, biased: bool, bounds: list[int]
) -> None:
    channels, taps = 307, 4  # more than a tile
    wide = drawn(23, channels + 9)
    x, kernel = wide[:, :channels], drawn(channels, taps, seed=1)
    bias = drawn(channels, seed=2) if biased else None
    convolve = Convolution(library, kernel, bias, silu=silu)
    expected = torch.nn.functional.conv1d(x.T[None], kernel[:, None], bias, padding=taps - 1, groups=channels)
    expected = expected[0, :, :23].T
    expected = torch.nn.functional.silu(expected) if silu else expected

    def computed(bounds: list[int]) -> Tensor:
        states = convolve.states(2)
        spans = [slice(*each) for each in pairwise(bounds)]
        steps = zip(spans, cut_runs(bounds), strict=True)
        return torch.cat([convolve(x[span], states, step) for span, step in steps])

    found = computed(bounds)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(found, computed([0, 23]))
