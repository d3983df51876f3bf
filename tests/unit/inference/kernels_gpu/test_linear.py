from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.gpu.linear import MOST_ROWS, Tile, processors, small_linear, tiles
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of norms
DTYPES = st.sampled_from(list(TOLERANCES))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_close(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    x, weight, bias = (
        x.double(),
        weight.double(),
        weight.new_zeros(1).double() if bias is None else bias.double(),
    )
    expected, size = x @ weight.T + bias, x.abs() @ weight.abs().T + bias.abs()  # size: if nothing cancelled
    error = (found.double() - expected).norm()
    assert error <= TOLERANCES[found.dtype] * size.norm()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, MOST_ROWS), st.integers(1, 80), st.integers(1, 700), DTYPES, st.booleans())
def test_rows_are_multiplied_as_the_chosen_tile_goes(
    rows: int, outputs: int, inner: int, dtype: torch.dtype, biased: bool
) -> None:
    x, weight = random(rows, inner, dtype=dtype), random(outputs, inner, dtype=dtype, seed=1)
    bias = random(outputs, dtype=dtype, seed=2) if biased else None
    found = small_linear(x, weight, bias)
    assert found.dtype == dtype
    assert_close(found, x, weight, bias)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [(1, Tile(4, 64, 1, False)), (1, Tile(16, 64, 1, True)), (5, Tile(32, 32, 1, True, 4, 3))],
)
@pytest.mark.parametrize("inner", [40, 256, 500])
def test_every_tile_gives_the_same_product(rows: int, tile: Tile, parts: int, inner: int) -> None:
    tile = Tile(tile.outputs, tile.inner, parts, tile.matrix, tile.warps, tile.stages)
    x, weight, bias = random(rows, inner), random(37, inner, seed=1), random(37, seed=2)
    assert_close(small_linear(x, weight, bias, tile=tile), x, weight, bias)


@pytest.mark.parametrize("rows", [1, 2, 16])
@pytest.mark.parametrize(("outputs", "inner"), [(896, 896), (4096, 14336), (128256, 4096), (5, 30)])
def test_tiles_are_powers_of_two_that_use_the_device(rows: int, outputs: int, inner: int) -> None:
    found = list(tiles(rows, outputs, inner, torch.bfloat16, 132))
    assert len(set(found)) == len(found) >= 1
    for tile in found:
        assert tile.matrix == (rows > 1)
        assert tile.outputs & (tile.outputs - 1) == tile.inner & (tile.inner - 1) == 0
        assert tile.parts == 1 or tile.parts * 512 <= inner
        if outputs * inner > 2**20:
            assert -(-outputs // tile.outputs) * tile.parts >= 66  # half of the processors


@pytest.mark.parametrize("inner", [200, 1200])
def test_a_row_has_the_same_bits_whatever_is_beside_it(inner: int) -> None:
    x, weight = random(MOST_ROWS, inner), random(50, inner, seed=1)
    everything = small_linear(x, weight, None)
    for rows in (2, 5, 11):
        assert torch.equal(small_linear(x[:rows], weight, None), everything[:rows])
    reversed_rows = small_linear(x.flip(0).contiguous(), weight, None).flip(0)
    assert torch.equal(reversed_rows, everything)
    assert torch.equal(small_linear(x[:1], weight, None), small_linear(x[:1].clone(), weight, None))


def test_the_result_goes_where_it_is_wanted() -> None:
    x, weight, bias = random(3, 64), random(20, 64, seed=1), random(20, seed=2)
    wide = torch.full((3, 50), torch.nan, device=DEVICE)
    small_linear(x, weight, bias, out=wide[:, 10:30])
    assert torch.equal(wide[:, 10:30], small_linear(x, weight, bias))
    assert wide[:, :10].isnan().all()
    assert wide[:, 30:].isnan().all()


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide, weight = random(4, 96), random(20, 32, seed=1)
    assert torch.equal(
        small_linear(wide[:, 32:64], weight, None), small_linear(wide[:, 32:64].contiguous(), weight, None)
    )


def test_what_it_cannot_do_is_refused() -> None:
    weight = random(8, 16)
    with pytest.raises(ValueError, match="16 rows, got 17"):
        small_linear(random(17, 16), weight, None)
    with pytest.raises(ValueError, match="1 row, got 2"):
        small_linear(random(2, 16), weight, None, tile=Tile(4, 16, 1, False))
    with pytest.raises(ValueError, match="side by side"):
        small_linear(random(16, 2).T, weight, None)
    assert small_linear(random(0, 16), weight, None).shape == (0, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
@pytest.mark.parametrize(
    ("outputs", "inner"), [(6144, 4096), (4096, 14336), (1152, 896), (896, 4864), (128256, 2048)]
)
def test_weights_of_real_models(rows: int, outputs: int, inner: int) -> None:
    x, weight = (
        random(rows, inner, dtype=torch.bfloat16),
        random(outputs, inner, dtype=torch.bfloat16, seed=1),
    )
    for tile in tiles(rows, outputs, inner, x.dtype, processors(DEVICE)):
        assert_close(small_linear(x, weight, None, tile=tile), x, weight, None)
    if rows > 2:
        assert torch.equal(small_linear(x[:2], weight, None), small_linear(x, weight, None)[:2])
