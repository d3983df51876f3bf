"""Weights in 4 bits, put together and taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from inference.quantised.bits4 import Bits4, join, pack_codes, packed_bytes, whole_numbers  # noqa: E402

CODES = torch.randint(0, 16, (5, 48), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
SCALES = torch.tensor([0.5, 0.25, 2.0]).repeat(5, 1)
ZEROS = torch.tensor([7, 0, 15]).repeat(5, 1)


def shifted() -> Bits4:
    return whole_numbers(pack_codes(CODES), 48, 16, SCALES, ZEROS)


def by_table() -> Bits4:
    return Bits4(pack_codes(CODES), 48, 16, SCALES, torch.linspace(-1, 1, 16) ** 3)


def test_a_weight_is_its_codes_less_their_zero_points_times_their_scales() -> None:
    expected = (CODES.float() - ZEROS.repeat_interleave(16, 1)) * SCALES.repeat_interleave(16, 1)
    assert torch.equal(shifted().expand(), expected)


def test_a_weight_by_a_table_is_what_that_says_times_the_scales() -> None:
    weight = by_table()
    assert torch.equal(weight.expand(), weight.levels[CODES.int()] * SCALES.repeat_interleave(16, 1))
    assert not weight.is_whole


def test_one_zero_point_for_all_is_kept_in_the_levels() -> None:
    weight = whole_numbers(pack_codes(CODES), 48, 16, SCALES, 8)
    assert weight.zeros is None
    assert weight.is_whole
    assert weight.levels.tolist() == list(range(-8, 8))
    assert torch.equal(weight.expand(), (CODES.float() - 8) * SCALES.repeat_interleave(16, 1))


@pytest.mark.parametrize(
    ("inputs", "group", "size"),
    [
        (48, 16, 16),
        (256, 128, 128),
        (512, 256, 128),
        (576, 192, 64),
        (48, 48, 48),
        (50, 50, 56),
        (300, 300, 128),
        (48, 12, 0),
        (300, 140, 0),
    ],
)
def test_groups_become_those_that_kernels_take(inputs: int, group: int, size: int) -> None:
    codes = torch.randint(0, 16, (3, inputs), dtype=torch.uint8)
    scales = torch.rand(3, -(-inputs // group))
    weight = whole_numbers(
        pack_codes(codes), inputs, group, scales, torch.arange(3)[:, None].expand_as(scales)
    )
    found = weight.packable()
    assert (0 if found is None else found.group) == size
    assert bool(packed_bytes(3, inputs, group, zeros=True)) == bool(size)
    if found is not None:
        assert torch.equal(found.expand(), weight.expand())
        beside = [each for each in (found.scales, found.zeros) if each is not None]
        taken = found.codes.nbytes + sum(each.nbytes for each in beside)
        assert taken <= packed_bytes(3, inputs, group, zeros=True)


def test_pieces_are_those_of_the_weight() -> None:
    for weight in (shifted(), by_table()):
        assert torch.equal(torch.cat([part.expand() for part in weight.split(2)]), weight.expand())


def test_weights_are_joined_whether_or_not_they_have_zero_points() -> None:
    plain = whole_numbers(pack_codes(CODES), 48, 16, SCALES, 8)
    joint = join([shifted(), plain, shifted()])
    assert joint is not None
    expected = torch.cat([shifted().expand(), plain.expand(), shifted().expand()])
    assert torch.equal(joint.expand(), expected)


def test_weights_that_have_one_zero_point_each_are_joined() -> None:
    parts = [whole_numbers(pack_codes(CODES), 48, 16, SCALES, zero) for zero in (7, 8)]
    joint = join(parts)
    assert joint is not None
    assert torch.equal(joint.expand(), torch.cat([each.expand() for each in parts]))


def test_weights_that_are_unlike_are_not_joined() -> None:
    assert join([shifted(), None]) is None
    assert join([shifted(), by_table()]) is None
    assert join([by_table(), replace(by_table(), group=24)]) is None
    assert join([by_table(), replace(by_table(), levels=torch.linspace(0, 1, 16))]) is None
