from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers.integrations.mxfp4 import FP4_VALUES  # noqa: E402

from inference.quantised.bits import fp4, power_of_two, scale_groups, unpack, words_for  # noqa: E402


@given(st.integers(1, 8), st.lists(st.integers(0, 255), min_size=1, max_size=70), st.integers(0, 2**32 - 1))
def test_numbers_come_out_of_words_as_they_were_put_in(bits: int, numbers: list[int], rest: int) -> None:
    numbers = [each % 2**bits for each in numbers]
    stream = sum(each << (at * bits) for at, each in enumerate(numbers))
    count = words_for(len(numbers), bits)
    stream |= rest << (len(numbers) * bits)  # what fills up the last word is nobody's
    words = [(stream >> (32 * at)) & 0xFFFFFFFF for at in range(count)]
    signed = [each - 2**32 if each >= 2**31 else each for each in words]
    packed = torch.tensor([signed, signed[:1] * count], dtype=torch.int32)
    assert unpack(packed, bits, len(numbers))[0].tolist() == numbers


def test_e2m1_has_the_values_that_transformers_has() -> None:
    octets = torch.arange(256, dtype=torch.uint8)
    expected = [FP4_VALUES[half] for octet in range(256) for half in (octet & 15, octet >> 4)]
    assert fp4(octets).tolist() == expected


def test_e8m0_is_what_torch_has() -> None:
    octets = torch.arange(256, dtype=torch.uint8)
    expected = octets.view(torch.float8_e8m0fnu).float()
    assert torch.equal(power_of_two(octets).nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(power_of_two(octets.view(torch.float8_e8m0fnu))[:255], expected[:255])


@pytest.mark.parametrize("columns", [8, 7])
def test_groups_side_by_side_are_the_same_as_named_ones(columns: int) -> None:
    numbers = torch.arange(2.0 * columns).view(2, columns)
    zeros, scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.5, 2.0], [4.0, 8.0]])
    order = torch.arange(columns) // 4
    expected = (numbers - zeros[:, order]) * scales[:, order]
    assert torch.equal(scale_groups(numbers.clone(), zeros, scales, 4, None), expected)
    assert torch.equal(scale_groups(numbers.clone(), zeros, scales, 1, order), expected)
    assert torch.equal(scale_groups(numbers.clone(), 3, scales, 4, None), (numbers - 3) * scales[:, order])
