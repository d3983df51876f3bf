"""Recurrences over packed sequences: the textbooks' numbers, and the same bits in pieces and at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu.batch import query_blocks
from inference.gpu.ops import torch_ops, triton_ops
from inference.gpu.recurrent import LOST, Runs
from inference.gpu.state_kernels import DeviceStateKernels
from inference.gpu.triton_ops import TritonOps
from inference.kernels.gpu.recurrence import recur
from inference.kernels.state_parts import Heads
from tests.unit.inference.recurrences import Delta, Recurrence, Scan, Scan2, drawn
from tests.unit.inference.triton_device import DEVICE, INTERPRETED

HEADS = [Heads(2, 4, 16, 8), Heads(1, 3, 4, 33), Heads(2, 2, 40, 16)]
REAL = [Heads(16, 16, 128, 128), Heads(1, 48, 128, 32), Heads(2, 6, 256, 64)]
TILE = 4
RECURRENCES = pytest.mark.parametrize("recurrence", [Delta, Scan2, Scan])


class ChunkedOps(TritonOps):
    """Computes in chunks whatever there is, in float32."""

    def recur(self, *given: Any) -> Tensor:
        return recur(*given, way="chunks")


OPS = {
    "chunks": ChunkedOps(deterministic=False, overlaps=False),
    "torch": torch_ops(),
    "triton": triton_ops(overlaps=False),
    "deterministic": triton_ops(deterministic=True, overlaps=False),
}
every_ops = pytest.mark.parametrize("ops", OPS)


def runs(*pieces: tuple[int, int, int]) -> Runs:
    """Return a step of pieces: how many tokens, where their state is read (-1: nowhere) and written."""
    sizes, reads, writes = (np.array(each, dtype=np.int64) for each in zip(*pieces, strict=True))
    starts = np.cumsum([0, *sizes])

    def ints(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(values).to(DEVICE, torch.int32)

    return Runs(
        starts=ints(starts),
        reads=ints(reads),
        writes=ints(writes),
        blocks=ints(query_blocks(sizes, TILE)),
        tile=TILE,
        longest=int(sizes.max()),
    )


def cut_runs(bounds: list[int]) -> list[Runs]:
    """Return steps of one sequence's pieces, which read one place and write to the other in turn."""
    sizes = [stop - start for start, stop in pairwise(bounds)]
    return [runs((size, at % 2 if at else -1, 1 - at % 2)) for at, size in enumerate(sizes)]


def cuts(tokens: int) -> st.SearchStrategy[list[int]]:
    inner = st.sets(st.integers(1, tokens - 1), max_size=6)
    return inner.map(lambda found: [0, *sorted(found), tokens])


def made(recurrence: type[Recurrence], ops: str, heads: Heads, tokens: int) -> Recurrence:
    return recurrence(DeviceStateKernels(OPS[ops]), heads, tokens, DEVICE)


def in_pieces(of: Recurrence, bounds: list[int]) -> tuple[Tensor, Tensor]:
    """Return what comes of a sequence in pieces, and its last state."""
    states = of.states(2).fill_(torch.nan)
    steps = cut_runs(bounds)
    spans = [slice(*each) for each in pairwise(bounds)]
    found = [of(span, states, step) for span, step in zip(spans, steps, strict=True)]
    return torch.cat(found), states[len(steps) % 2]


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@every_ops
@pytest.mark.parametrize("heads", HEADS if INTERPRETED else HEADS[:1], ids=str)  # a GPU's compiler takes long
@RECURRENCES
@settings(deadline=None, max_examples=4)
@given(bounds=cuts(13))
def test_recurrence_is_the_textbooks_in_any_pieces(
    recurrence: type[Recurrence], heads: Heads, ops: str, bounds: list[int]
) -> None:
    of = made(recurrence, ops, heads, 13)
    assert apart(in_pieces(of, bounds)[0], of.textbook()) < 1e-5


@RECURRENCES
@settings(deadline=None, max_examples=5)
@given(bounds=cuts(11))
def test_in_one_order_of_sums_it_has_the_same_bits_in_any_pieces(
    recurrence: type[Recurrence], bounds: list[int]
) -> None:
    of = made(recurrence, "deterministic", HEADS[0], 11)
    for found, whole in zip(in_pieces(of, bounds), in_pieces(of, [0, 11]), strict=True):
        assert torch.equal(found, whole)


@every_ops
@RECURRENCES
def test_sequences_of_a_step_know_nothing_of_each_other(recurrence: type[Recurrence], ops: str) -> None:
    of = made(recurrence, ops, HEADS[0], 12)
    states = of.states(4).fill_(torch.nan)
    together = of(slice(0, 12), states, runs((5, -1, 3), (7, -1, 0)))
    assert apart(together[:5], in_pieces(of, [0, 12])[0][:5]) < 1e-6
    assert apart(together[5:], of(slice(5, 12), of.states(1), runs((7, -1, 0)))) < 1e-6
    assert states[1:3].isnan().all()


@every_ops
@RECURRENCES
def test_padding_is_kept_nowhere_and_what_is_read_stays(recurrence: type[Recurrence], ops: str) -> None:
    of = made(recurrence, ops, HEADS[0], 8)
    states = of.states(3)
    of(slice(0, 5), states, runs((5, -1, 1)))
    before = states[1].clone()
    states[2] = torch.nan
    of(slice(5, 7), states, runs((1, 1, 0), (1, -1, -1)))
    assert torch.equal(states[1], before)
    assert states[2].isnan().all()
    first = of(slice(5, 6), states, runs((1, 1, 0)))
    assert torch.equal(of(slice(5, 6), states, runs((1, 1, 0))), first)


def test_places_of_states_may_be_parts_of_wider_ones() -> None:
    of = made(Delta, "triton", HEADS[0], 6)
    one = of.states(1)
    wide = torch.full((2, one[0].numel() + 64), torch.nan, device=DEVICE)
    states = wide[:, 32:-32].unflatten(1, one.shape[1:])
    found = [of(slice(0, 4), states, runs((4, -1, 1))), of(slice(4, 6), states, runs((2, 1, 0)))]
    assert apart(torch.cat(found), of.textbook()) < 1e-5
    assert wide[:, :32].isnan().all()
    assert wide[:, -32:].isnan().all()


@every_ops
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@settings(deadline=None, max_examples=5)
@given(bounds=cuts(11))
def test_convolution_is_torchs_in_any_pieces(ops: str, silu: bool, biased: bool, bounds: list[int]) -> None:
    channels, taps = 131, 4  # more than a program's
    wide = drawn(11, channels + 9)
    kernel = drawn(channels, taps, seed=1)
    bias = drawn(channels, seed=2) if biased else None
    given = kernel.to(DEVICE), None if bias is None else bias.to(DEVICE)
    convolve = DeviceStateKernels(OPS[ops]).convolution(*given, silu=silu)
    x = wide[:, :channels]
    expected = torch.nn.functional.conv1d(x.T[None], kernel[:, None], bias, padding=taps - 1, groups=channels)
    expected = expected[0, :, :11].T
    expected = torch.nn.functional.silu(expected) if silu else expected
    states = convolve.states(2).fill_(torch.nan)
    spans = [slice(*each) for each in pairwise(bounds)]
    steps = zip(spans, cut_runs(bounds), strict=True)
    on_device = wide.to(DEVICE)[:, :channels]
    found = torch.cat([convolve(on_device[span], states, step).cpu() for span, step in steps])
    assert torch.allclose(found, expected, atol=1e-5)


@every_ops
@pytest.mark.parametrize("shares", [0.0, 10.0])
def test_tokens_that_are_all_alike_are_told_apart(ops: str, shares: float) -> None:
    """The system to be solved is as far from a diagonal one as it can be, and nothing decays."""
    of = made(Delta, ops, HEADS[0], 48)
    assert isinstance(of, Delta)
    of.x[:] = of.x[:1]
    of.steps[:] = -30.0
    of.shares[:] = shares
    assert apart(in_pieces(of, [0, 48])[0], of.textbook()) < 1e-3


@every_ops
def test_convolution_of_a_state_that_is_lost_gives_no_number(ops: str) -> None:
    convolve = DeviceStateKernels(OPS[ops]).convolution(drawn(20, 4).to(DEVICE), None, silu=True)
    states, x = convolve.states(3).fill_(0.0), drawn(9, 20, seed=1).to(DEVICE)
    found = convolve(x, states, runs((5, LOST, 1), (4, -1, 2)))
    assert found[:5].isnan().all()
    assert found[5:].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("ops", ["triton", "deterministic"])
@pytest.mark.parametrize("heads", REAL, ids=str)
@RECURRENCES
def test_heads_of_real_models(recurrence: type[Recurrence], heads: Heads, ops: str) -> None:
    of = made(recurrence, ops, heads, 70)
    for bounds in ([0, 70], [0, 64, 65, 66, 70]):
        assert apart(in_pieces(of, bounds)[0], of.textbook()) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("heads", REAL, ids=str)
@pytest.mark.parametrize("recurrence", [Delta, Scan2])
def test_in_16_bits_chunks_are_off_by_rounding(recurrence: type[Recurrence], heads: Heads) -> None:
    of = made(recurrence, "triton", heads, 300)
    of.narrow(torch.bfloat16)
    found, expected = in_pieces(of, [0, 200, 201, 300])[0].float(), of.textbook()
    assert float((found - expected).norm() / expected.norm()) < 0.01
