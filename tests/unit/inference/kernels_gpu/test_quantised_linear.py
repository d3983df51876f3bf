from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.gpu.linear import processors
from inference.kernels.gpu.quantised_linear import (
    QuantisedTile,
    expand_blocks,
    quantised_linear,
    quantised_tiles,
)
from inference.quantised.bits4 import Bits4, pack_codes, whole_numbers
from inference.quantised.bits8 import Bits8
from inference.quantised.blocks import Blocks
from tests.unit.inference.triton_device import DEVICE, INTERPRETED

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of norms
FORMS = ("one zero point", "zero points", "levels", "int8", "e4m3", "e5m2")

EIGHT_BITS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def make(form: str, outputs: int, inner: int, group: int, dtype: torch.dtype) -> Blocks:
    """Return a random weight on the device."""
    generator = torch.Generator().manual_seed(5)
    if form in EIGHT_BITS:
        numbers = torch.randn(outputs, inner, generator=generator) * 20
        codes = (numbers.round() if form == "int8" else numbers / 40).to(EIGHT_BITS[form])
        scales = torch.rand(outputs, -(-inner // group), generator=generator) + 0.5
        return Blocks.of(Bits8(codes, group, scales), dtype).to(DEVICE)
    codes = pack_codes(torch.randint(0, 16, (outputs, inner), generator=generator, dtype=torch.uint8))
    scales = torch.rand(outputs, -(-inner // group), generator=generator) + 0.5
    if form == "levels":
        weight = Bits4(codes, inner, group, scales, torch.linspace(-1.0, 1.0, 16) ** 3)
    elif form == "zero points":
        zeros = torch.randint(0, 16, scales.shape, generator=generator)
        weight = whole_numbers(codes, inner, group, scales.half(), zeros)
    else:
        weight = whole_numbers(codes, inner, group, scales.bfloat16(), 8)
    return Blocks.of(weight, dtype).to(DEVICE)


def assert_close(found: Tensor, x: Tensor, weight: Blocks, bias: Tensor | None) -> None:
    wide, numbers = x.double(), weight.expand(torch.float32).double()
    added = numbers.new_zeros(1) if bias is None else bias.double()
    expected, size = wide @ numbers.T + added, wide.abs() @ numbers.abs().T + added.abs()
    assert found.dtype == x.dtype
    assert (found.double() - expected).norm() <= TOLERANCES[found.dtype] * size.norm()


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    if INTERPRETED and found.dtype == torch.bfloat16:  # the interpreter cuts off what doesn't fit
        torch.testing.assert_close(found, expected, rtol=torch.finfo(torch.bfloat16).eps, atol=0)
    else:
        assert torch.equal(found, expected)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(FORMS),
    st.integers(1, 40),
    st.integers(1, 80),
    st.integers(1, 600),
    st.sampled_from([8, 16, 24, 32, 64, 96, 128, 256, 1000]),
    st.sampled_from(list(TOLERANCES)),
    st.booleans(),
)
def test_rows_are_multiplied_as_the_chosen_tile_goes(
    form: str, rows: int, outputs: int, inner: int, group: int, dtype: torch.dtype, biased: bool
) -> None:
    weight = make(form, outputs, inner, group, dtype)
    x, bias = random(rows, inner, dtype=dtype), random(outputs, dtype=dtype, seed=2) if biased else None
    tile = next(quantised_tiles(rows, weight, processors(DEVICE)))
    assert_close(quantised_linear(x, weight, bias, tile=tile), x, weight, bias)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(FORMS),
    st.integers(1, 80),
    st.integers(1, 1200),
    st.sampled_from([8, 32, 64, 96, 128, 1000]),
    st.sampled_from(list(TOLERANCES)),
)
def test_an_expanded_weight_has_the_numbers_that_its_codes_say(
    form: str, outputs: int, inner: int, group: int, dtype: torch.dtype
) -> None:
    weight = make(form, outputs, inner, group, dtype)
    assert_same(expand_blocks(weight, dtype), weight.expand())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_every_tile_gives_the_same_product(form: str, parts: int, blocks: int, rows: int) -> None:
    tile = QuantisedTile(16, blocks, parts, 1 if rows == 1 else 16, 4, 3)
    for inner in (128 * blocks * parts, 500):
        weight, x, bias = make(form, 37, inner, 32, torch.float32), random(rows, inner), random(37, seed=2)
        assert_close(quantised_linear(x, weight, bias, tile=tile), x, weight, bias)


@pytest.mark.parametrize("rows", [1, 2, 16, 64, 256])
@pytest.mark.parametrize(("outputs", "inner"), [(896, 896), (4096, 14336), (5, 30)])
def test_tiles_are_powers_of_two_that_use_the_device(rows: int, outputs: int, inner: int) -> None:
    found = list(quantised_tiles(rows, make("levels", outputs, inner, 128, torch.bfloat16), 132))
    assert len(set(found)) == len(found) >= 1
    for tile in found:
        assert (tile.rows == 1) == (rows == 1)
        assert all(
            number & (number - 1) == 0 for number in (tile.outputs, tile.blocks, tile.parts, tile.rows)
        )
        assert tile.parts == 1 or tile.parts <= inner // 256
        if outputs * inner > 2**20:
            assert (
                -(-outputs // tile.outputs) * tile.parts * -(-rows // tile.rows) >= 66
            )  # half of the processors


def test_a_row_has_the_same_bits_whatever_is_beside_it() -> None:
    weight, x = make("zero points", 50, 700, 64, torch.float32), random(40, 700)
    tile = QuantisedTile(32, 1, 2, 16)
    everything = quantised_linear(x, weight, None, tile=tile)
    for rows in (2, 17, 31):
        assert torch.equal(quantised_linear(x[:rows], weight, None, tile=tile), everything[:rows])


def test_rows_may_be_parts_of_wider_ones_and_of_none() -> None:
    weight, wide = make("levels", 20, 64, 16, torch.float32), random(4, 96)
    tile = QuantisedTile(16, 1, 1, 16)
    apart = quantised_linear(wide[:, 16:80], weight, None, tile=tile)
    assert torch.equal(apart, quantised_linear(wide[:, 16:80].contiguous(), weight, None, tile=tile))
    assert quantised_linear(wide[:0, :64], weight, None, tile=tile).shape == (0, 20)


def test_what_it_cannot_do_is_refused() -> None:
    weight = make("levels", 8, 16, 16, torch.float32)
    with pytest.raises(ValueError, match="1 row, got 2"):
        quantised_linear(random(2, 16), weight, None, tile=QuantisedTile(4, 1, 1, 1))
    with pytest.raises(ValueError, match="side by side"):
        quantised_linear(random(16, 2).T, weight, None, tile=QuantisedTile(4, 1, 1, 16))


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize(("outputs", "inner"), [(6144, 4096), (4096, 14336), (1152, 896), (896, 4864)])
def test_weights_of_real_models(form: str, rows: int, outputs: int, inner: int) -> None:
    for group in (128, 32):
        weight, x = (
            make(form, outputs, inner, group, torch.bfloat16),
            random(rows, inner, dtype=torch.bfloat16),
        )
        assert_same(expand_blocks(weight, x.dtype), weight.expand())
        for tile in quantised_tiles(rows, weight, processors(DEVICE)):
            assert_close(quantised_linear(x, weight, None, tile=tile), x, weight, None)
