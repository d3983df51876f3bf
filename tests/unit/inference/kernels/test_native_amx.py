"""What AMX multiplies, beside other instructions of the same CPU and beside torch in float64."""

from __future__ import annotations

import pytest
import torch

from inference.kernels.native import Library, PackedLinear, WeightKind, open_library

LIBRARIES = {isa: opened for isa in ("amx", "avx512") if (opened := open_library(2, isa)) is not None}
pytestmark = pytest.mark.skipif("amx" not in LIBRARIES, reason="this CPU has no AMX")


def library(isa: str) -> Library:
    """Return a handle that all tests share."""
    return LIBRARIES[isa]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [WeightKind.BFLOAT16, WeightKind.CODED])
@pytest.mark.parametrize("rows", [1, 16, 40, 300])
def test_amx_multiplies_float32_inputs_as_exactly_as_float32_does(kind: WeightKind, rows: int) -> None:
    x, weight, bias = randn(rows, 900, seed=1), randn(70, 900, seed=2).bfloat16(), randn(70, seed=3)
    x[:, ::7] *= 2.0 ** torch.randint(-60, 60, x[:, ::7].shape, generator=torch.Generator().manual_seed(4))
    exact = x.double() @ weight.double().T + bias.double()
    sizes = x.double().abs() @ weight.double().abs().T  # what rounding is relative to
    for isa in ("amx", "avx512"):
        lost = (PackedLinear.pack(library(isa), weight, bias, kind)(x) - exact).abs() / sizes
        assert lost.max() < 2.0**-20, isa  # two numbers of bfloat16 in place of three would lose 2^-17


def test_amx_multiplies_the_greatest_and_the_least_numbers() -> None:
    greatest = torch.finfo(torch.float32).max
    linear = PackedLinear.pack(library("amx"), torch.eye(40), None, WeightKind.BFLOAT16)
    x = torch.tensor([greatest, -greatest, 1 + 2.0**-23, 1 / 3, 2.0**-100 / 3, 0.0, -0.0, float("inf"), 1.0])
    diagonal = torch.diag(torch.nn.functional.pad(x, (0, 31)))
    y = linear(diagonal)
    assert torch.equal(diagonal[:7].diagonal(), y[:7].diagonal())
    assert not y[7].isfinite().any(), "an infinity times a zero is no number"
    assert torch.equal(diagonal[8], y[8])


@pytest.mark.parametrize("kind", [WeightKind.INT8, WeightKind.INT6])
@pytest.mark.parametrize("rows", [4, 5, 16, 17, 33, 70, 257, 511, 1000])
def test_integers_have_the_same_bits_as_without_tiles(kind: WeightKind, rows: int) -> None:
    x, weight, bias = randn(rows, 1100, seed=1), randn(75, 1100, seed=2), randn(75, seed=3)
    by_tiles, by_vectors = (
        PackedLinear.pack(each, weight, bias, kind)(x).view(torch.int32) for each in LIBRARIES.values()
    )
    assert torch.equal(by_tiles, by_vectors)


@pytest.mark.parametrize("kind", [WeightKind.BFLOAT16, WeightKind.CODED])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("outputs", [1024, 90])  # rows of y in few sets of the caches; panels in part
@pytest.mark.parametrize("inputs", [2500, 7000])  # as many rows at once as the caches keep; too long for that
def test_long_inputs_of_many_rows_are_multiplied_as_exactly_and_as_alone(
    kind: WeightKind, rounds: bool, outputs: int, inputs: int
) -> None:
    x, weight = randn(300, inputs, seed=1), randn(outputs, inputs, seed=2).bfloat16()
    linear = PackedLinear.pack(library("amx"), weight, None, kind, round_inputs=rounds)
    together = linear(x)
    taken = (x.bfloat16() if rounds else x).double()
    lost = (together - taken @ weight.double().T).abs() / (taken.abs() @ weight.double().abs().T)
    assert lost.max() < 2.0**-20
    for first, last in ((0, 1), (31, 33), (127, 130), (159, 161), (298, 300)):
        assert torch.equal(together[first:last].view(torch.int32), linear(x[first:last]).view(torch.int32))
