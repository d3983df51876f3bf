"""Weights in int8 and in its upper six bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inference.kernels import quantizing  # noqa: E402
from inference.kernels.quantizing import quantize_rows, sums_of_rows  # noqa: E402


def test_each_output_has_its_greatest_weight_at_127() -> None:
    rows, scales = quantize_rows(torch.tensor([[1.0, -2.0, 0.5], [100.0, 0.0, -50.0]]))
    assert rows.tolist() == [[64, -127, 32], [127, 0, -64]]
    assert scales.tolist() == pytest.approx([2 / 127, 100 / 127])


def test_in_steps_of_four_the_greatest_weight_is_at_124() -> None:
    rows, scales = quantize_rows(torch.tensor([[1.0, -2.0, 0.5], [100.0, 0.0, -50.0]]), 4)
    assert rows.tolist() == [[64, -124, 32], [124, 0, -64]]
    assert scales.tolist() == pytest.approx([2 / 124, 100 / 124])


def test_weights_of_nothing_are_zeros() -> None:
    rows, scales = quantize_rows(torch.zeros(2, 3))
    assert not rows.any()
    assert (scales > 0).all()


@pytest.mark.parametrize("step", [1, 4])
def test_no_weight_is_more_than_half_a_step_off(step: int) -> None:
    weight = torch.randn(5000, 7, generator=torch.Generator().manual_seed(0)).bfloat16()  # more than at once
    rows, scales = quantize_rows(weight, step)
    off = (rows.double() * scales[:, None].double() - weight.double()).abs()
    assert (off <= 0.5001 * step * scales[:, None]).all()


@pytest.mark.parametrize("k", [1, 2, 7, 64])
def test_what_is_subtracted_of_a_row_is_its_sum_times_128_or_the_products_of_neighbours(k: int) -> None:
    rows = torch.randint(-128, 128, (5000, k), generator=torch.Generator().manual_seed(k), dtype=torch.int8)
    exact = rows.long()
    assert torch.equal(sums_of_rows(rows, paired=False), (exact.sum(1) * 128).int())
    products = sum((exact[:, i] * exact[:, i + 1] for i in range(0, k - 1, 2)), torch.zeros(5000).long())
    assert torch.equal(sums_of_rows(rows, paired=True), products.int())


@pytest.mark.parametrize("step", [1, 4])
def test_a_row_becomes_the_same_however_many_are_worked_on_at_once(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(7, 10, generator=torch.Generator().manual_seed(3))
    rows, scales = quantize_rows(weight, step)
    sums = [sums_of_rows(rows, paired=paired) for paired in (False, True)]
    pieces: list[int] = []
    for numbers in (1, 25, 69):
        monkeypatch.setattr(quantizing, "_AT_ONCE", numbers)
        found, found_scales = quantize_rows(weight, step)
        assert torch.equal(found, rows)
        assert torch.equal(found_scales, scales)
        again = [sums_of_rows(rows, paired=paired) for paired in (False, True)]
        assert all(torch.equal(each, other) for each, other in zip(again, sums, strict=True))
        pieces.append(len([*quantizing._slices(weight)]))
    assert pieces[0] > 1
