"""Rounding to 4 bits, as bitsandbytes does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inference.quantised.rounding4 import BLOCK, LEVELS, round_rows  # noqa: E402

KINDS = sorted(LEVELS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [BLOCK, 3 * BLOCK, 100, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_number_becomes_the_nearest_level_of_its_block(kind: str, columns: int, dtype: str) -> None:
    weight = torch.randn(5, columns, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    before, found = weight.clone(), round_rows(weight, kind)
    assert torch.equal(weight, before), "it is left as it is"
    assert found.shape == (5, columns)
    wide, levels = weight.float(), torch.tensor(LEVELS[kind])
    for start in range(0, columns, BLOCK):
        block = wide[:, start : start + BLOCK]
        greatest = block.abs().amax(1, keepdim=True)
        assert torch.equal(found.scales[:, start // BLOCK, None], greatest)
        possible = greatest[..., None] * levels
        least = (possible - block[..., None]).abs().amin(-1)
        error = (found.expand()[:, start : start + BLOCK] - block).abs()
        torch.testing.assert_close(error, least, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_bitsandbytes(kind: str) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    weight = torch.randn(64, 4 * BLOCK, generator=torch.Generator().manual_seed(2))
    packed, state = functional.quantize_4bit(weight, blocksize=BLOCK, quant_type=kind)
    expected = functional.dequantize_4bit(packed, state)
    torch.testing.assert_close(round_rows(weight, kind).expand(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind: str) -> None:
    weight = torch.zeros(3, 2 * BLOCK)
    weight[1, 5] = -2.0
    assert torch.equal(round_rows(weight, kind).expand(), weight)
