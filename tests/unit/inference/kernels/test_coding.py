"""bfloat16 in 12 bits: nothing is lost, and linears give the same bits as with all 16, on every ISA."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.native import Library, PackedLinear, WeightKind, library_path, open_library
from tests.isas import ISAS

pytestmark = pytest.mark.skipif(library_path() is None, reason="the extension wasn't built: no GCC")
every_isa = pytest.mark.parametrize("isa", ISAS)
sizes = st.integers(1, 70) | st.sampled_from([127, 128, 129, 1024, 1027, 2501])
KINDS = ("trained", "zeros", "one exponent", "any bits", "holes", "strange")


@cache
def library(isa: str, threads: int = 2) -> Library:
    """Return a handle that all tests share."""
    opened = open_library(threads, isa)
    if opened is None:
        pytest.skip(f"this CPU has no {isa}")
    return opened


def weights(kind: str, n: int, k: int, seed: int) -> Tensor:
    """Return bfloat16 weights (n, k) of which more or less have a code."""
    generator = torch.Generator().manual_seed(seed)
    trained = torch.randn((n, k), generator=generator).mul(0.02).bfloat16()
    any_bits = torch.randint(-(1 << 15), 1 << 15, (n, k), generator=generator).short().view(torch.bfloat16)
    where = torch.rand((n, k), generator=generator)
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-40, -0.0, 3e38]).bfloat16()
    return {
        "trained": trained,
        "zeros": torch.zeros_like(trained),
        "one exponent": (1 + where).bfloat16(),
        "any bits": any_bits,
        "holes": torch.where(where < 0.1, torch.zeros_like(trained), trained),
        "strange": torch.where(where < 0.02, strange[torch.arange(n * k).view(n, k) % 6], trained),
    }[kind]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Tell whether the bits of 16-bit tensors are the same, of NaN too."""
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


@every_isa
@settings(max_examples=30, deadline=None)
@given(n=sizes, k=sizes, kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
def test_coding_loses_nothing(isa: str, n: int, k: int, kind: str, seed: int) -> None:
    weight = weights(kind, n, k, seed)
    coded = PackedLinear.pack(library(isa), weight, None, WeightKind.CODED)
    assert same_bits(weight, coded.unpack())
    ids = torch.tensor([n - 1, 0, seed % n])
    assert same_bits(weight[ids], coded.rows(ids))


@every_isa
@pytest.mark.parametrize("round_inputs", [False, True])
@settings(max_examples=25, deadline=None)
@given(n=sizes, k=sizes, rows=st.integers(1, 60), kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
def test_linears_give_the_same_bits_as_with_all_16(
    isa: str, round_inputs: bool, n: int, k: int, rows: int, kind: str, seed: int
) -> None:
    weight, bias = weights(kind, n, k, seed), torch.linspace(-1, 1, n)
    plain, coded = (
        PackedLinear.pack(library(isa), weight, bias, form, round_inputs=round_inputs)
        for form in (WeightKind.BFLOAT16, WeightKind.CODED)
    )
    x = torch.randn((rows, k), generator=torch.Generator().manual_seed(seed))
    expected, found = plain(x), coded(x)
    numbers = ~expected.isnan()  # of NaN nothing says which one it is
    assert torch.equal(numbers, ~found.isnan())
    assert torch.equal(expected[numbers].view(torch.int32), found[numbers].view(torch.int32))


@every_isa
@pytest.mark.parametrize("rows", [1, 2, 3, 6, 7, 8, 9, 12, 13])
@pytest.mark.parametrize("k", [1024, 1027, 2501])
@pytest.mark.parametrize("kind", ["strange", "any bits"])
def test_each_way_through_a_panel_gives_the_same_bits(isa: str, rows: int, k: int, kind: str) -> None:
    """Blocks of each height, slices of a long panel, and exceptions in each group of columns."""
    weight = weights(kind, 70, k, 7)
    if kind == "any bits":
        weight = torch.where(
            weight.abs() < 1e30, weight, 0
        )  # no NaN and no infinity, which say nothing of the rest
    plain, coded = (
        PackedLinear.pack(library(isa), weight, None, form)
        for form in (WeightKind.BFLOAT16, WeightKind.CODED)
    )
    x = torch.randn((rows, k), generator=torch.Generator().manual_seed(rows))
    expected, found = plain(x), coded(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert torch.equal(expected.nan_to_num().view(torch.int32), found.nan_to_num().view(torch.int32))


@settings(max_examples=30, deadline=None)
@given(n=sizes, k=sizes, kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
def test_as_few_weights_as_possible_are_without_a_code(n: int, k: int, kind: str, seed: int) -> None:
    weight = weights(kind, n, k, seed)
    coded = PackedLinear.pack(library("baseline"), weight, None, WeightKind.CODED)
    plain = PackedLinear.pack(library("baseline"), weight, None, WeightKind.BFLOAT16)
    expected = sum(_without_code(panel) for panel in weight.split(32))
    panels = -(-n // 32)
    codes = panels * -(-k // 4) * 192  # for 4 inputs of 32 outputs 192 bytes, of 256
    assert coded.nbytes - codes == panels * (1 + 8 + 8) + 8 * expected  # base, place, end; exceptions
    assert plain.nbytes == panels * -(-k // 2) * 128


def _without_code(panel: Tensor) -> int:
    exponents = (panel.view(torch.int16).int() >> 7) & 0xFF
    counts = torch.bincount(exponents.flatten(), minlength=256)
    return panel.numel() - int(counts.unfold(0, 16, 2).sum(1).max())  # the least of them is even


@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_compressed_where_few_are_without_a_code(kind: str, isa: str) -> None:
    weight = weights(kind, 256, 512, 0)
    packed = PackedLinear.pack(library(isa), weight, None, WeightKind.BFLOAT16, compress=True)
    pays = kind in ("trained", "zeros", "one exponent")
    assert packed.kind is (WeightKind.CODED if pays else WeightKind.BFLOAT16)
    assert (packed.nbytes < 0.76 * weight.nbytes) == pays


def test_nothing_is_compressed_where_no_instruction_decodes() -> None:
    weight = weights("trained", 64, 64, 0)
    packed = PackedLinear.pack(library("baseline"), weight, None, WeightKind.BFLOAT16, compress=True)
    assert packed.kind is WeightKind.BFLOAT16


@pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.FLOAT16, WeightKind.INT8])
def test_only_bfloat16_is_compressed(kind: WeightKind) -> None:
    weight = weights("trained", 64, 64, 0)
    assert PackedLinear.pack(library("avx2"), weight, None, kind, compress=True).kind is kind
