"""Weights in 8 bits, put together, taken apart and rounded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inference.quantised import bits8  # noqa: E402
from inference.quantised.bits4 import Bits4, pack_codes  # noqa: E402
from inference.quantised.bits8 import Bits8, round_rows  # noqa: E402
from inference.quantised.codes import bits_of, join  # noqa: E402

KINDS = [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]


def weight(kind: object = torch.int8, outputs: int = 5, inputs: int = 40, group: int = 16) -> Bits8:
    numbers = torch.randint(-100, 100, (outputs, inputs)).float()
    return Bits8(numbers.to(kind), group, torch.rand(outputs, -(-inputs // group)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_its_numbers_times_their_scales(kind: object) -> None:
    own = weight(kind)
    assert own.shape == (5, 40)
    assert torch.equal(own.expand(), own.codes.float() * own.scales.repeat_interleave(16, 1)[:, :40])
    rows = weight(kind, group=40)
    assert torch.equal(rows.expand(), rows.codes.float() * rows.scales)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_those_of_the_weight_and_are_joined_to_it_again(kind: object) -> None:
    own = weight(kind)
    for sizes in (2, [1, 4]):
        parts = list(own.split(sizes))
        assert torch.equal(torch.cat([each.expand() for each in parts]), own.expand())
        joined = join(parts)
        assert joined is not None
        assert bits_of(joined) == 8
        assert torch.equal(joined.expand(), own.expand())


def test_weights_that_are_unlike_are_not_joined() -> None:
    own = weight()
    assert bits8.join([own, weight(torch.float8_e5m2)]) is None
    assert bits8.join([own, weight(inputs=48)]) is None
    assert bits8.join([own, weight(group=8)]) is None
    assert join([own, None]) is None
    four = Bits4(pack_codes(torch.zeros(5, 40, dtype=torch.uint8)), 40, 16, own.scales, torch.arange(16.0))
    assert join([own, four]) is None
    assert join([four, four]) is not None


def test_rows_are_rounded_to_the_nearest_of_their_own_numbers() -> None:
    own = torch.randn(70_000, 20)  # more than are rounded at once
    own[3] = 0
    found = round_rows(own)
    step = own.abs().amax(1, keepdim=True) / 127
    assert torch.equal(found.expand()[3], torch.zeros(20))
    assert ((found.expand() - own).abs() <= step * 0.5001).all()
    assert int(found.codes.abs().amax()) == 127


def test_it_goes_where_it_is_sent() -> None:
    there = weight().to(torch.device("meta"))
    assert there.codes.device.type == there.scales.device.type == "meta"
