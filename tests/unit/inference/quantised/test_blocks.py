"""Weights in 4 bits in the order in which a device's kernels read them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from inference.quantised.bits4 import Bits4, pack_codes, whole_numbers  # noqa: E402
from inference.quantised.bits8 import Bits8, bytes_in_8_bits  # noqa: E402
from inference.quantised.blocks import BLOCK, HALF, Blocks, Numbers  # noqa: E402
from inference.quantised.codes import Codes  # noqa: E402

EIGHT_BITS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMS = st.sampled_from(["one zero point", "zero points", "levels", "other whole levels", *EIGHT_BITS])


def make(form: str, outputs: int, inputs: int, group: int) -> Codes:
    if form in EIGHT_BITS:
        numbers = torch.randint(-128, 128, (outputs, inputs)).to(EIGHT_BITS[form])
        return Bits8(numbers, group, torch.rand(outputs, -(-inputs // group)) + 0.5)
    codes = pack_codes(torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8))
    scales = torch.rand(outputs, -(-inputs // group)) + 0.5
    if form == "levels":
        return Bits4(codes, inputs, group, scales, torch.linspace(-1.0, 1.0, 16) ** 3)
    if form == "other whole levels":
        return Bits4(codes, inputs, group, scales, torch.arange(16) - 7.5)
    zeros = torch.randint(0, 16, scales.shape) if form == "zero points" else 8
    return whole_numbers(codes, inputs, group, scales, zeros)


@settings(deadline=None, max_examples=60)
@given(FORMS, st.integers(1, 9), st.integers(1, 400), st.sampled_from([8, 24, 32, 64, 128, 192, 1000]))
def test_it_is_the_same_weight(form: str, outputs: int, inputs: int, group: int) -> None:
    weight = make(form, outputs, inputs, group)
    found = Blocks.of(weight, torch.bfloat16)
    assert (found.shape, found.blocks) == ((outputs, inputs), (inputs + BLOCK - 1) // BLOCK)
    assert found.run == (HALF if group >= inputs else math.gcd(group, HALF))
    assert torch.equal(found.unpack().expand(), weight.expand())
    assert torch.equal(found.expand(), weight.expand().bfloat16())
    assert torch.equal(found.expand(torch.float32), weight.expand())


@pytest.mark.parametrize("form", ["zero points", *EIGHT_BITS])
def test_rows_lie_one_behind_the_other_whatever_order_files_have(form: str) -> None:
    weight = make(form, 6, 256, 32)
    turned = replace(weight, scales=weight.scales.T.contiguous().T)  # as GPTQ and AWQ have them
    if isinstance(turned, Bits4) and turned.zeros is not None:
        turned = replace(turned, zeros=turned.zeros.T.contiguous().T)
    for given_so in (turned, replace(weight, scales=torch.ones(1).expand(6, 8))):
        found = Blocks.of(given_so, torch.float16)
        read = [each for each in (found.codes, found.scales, found.zeros) if each is not None]
        assert all(each.is_contiguous() for each in read)
        assert torch.equal(found.expand(torch.float32), given_so.expand())


@pytest.mark.parametrize("group", [32, 96, 128])
def test_a_byte_has_inputs_that_are_half_a_block_apart_and_runs_have_one_scale(group: int) -> None:
    weight = make("one zero point", 3, 300, group)
    found = Blocks.of(weight, torch.float32)
    numbers = torch.zeros(3, 3 * BLOCK)
    numbers[:, :300] = weight.expand()
    assert found.offset == -8
    for byte in range(found.codes.shape[1]):
        first = byte // HALF * BLOCK + byte % HALF
        for at, codes in ((first, found.codes[:, byte] & 15), (first + HALF, found.codes[:, byte] >> 4)):
            if at < 300:
                assert torch.equal((codes - 8.0) * found.scales[:, at // group], numbers[:, at])
            run = torch.arange(at // found.run * found.run, at // found.run * found.run + found.run)
            assert len((run // group).unique()) == 1


def test_what_kernels_count_is_told_from_what_they_look_up() -> None:
    expected = {
        "zero points": (Numbers.COUNTED, 0),
        "one zero point": (Numbers.COUNTED, -8),
        "levels": (Numbers.LEVELS, 0),
        "other whole levels": (Numbers.LEVELS, 0),
        "int8": (Numbers.COUNTED, -128),
        "e4m3": (Numbers.E4M3, 0),
        "e5m2": (Numbers.E5M2, 0),
    }
    for form, (numbers, offset) in expected.items():
        found = Blocks.of(make(form, 4, 64, 32), torch.float16)
        assert (found.numbers, found.offset) == (numbers, offset), form


def test_forms_that_kernels_are_compiled_for_are_told_apart() -> None:
    made = [make(form, 4, 64, 32) for form in ("one zero point", "zero points", "levels", *EIGHT_BITS)]
    made += [make("levels", 4, 64, 16), make("levels", 8, 64, 32), make("levels", 4, 66, 32)]
    assert len({Blocks.of(each, torch.float16).form for each in made}) == len(made)


def test_pieces_are_those_of_the_weight() -> None:
    weight = make("zero points", 7, 200, 64)
    parts = Blocks.of(weight, torch.float32).split([4, 1, 2])
    assert [part.shape for part in parts] == [(4, 200), (1, 200), (2, 200)]
    assert torch.equal(torch.cat([part.expand() for part in parts]), weight.expand())


def test_it_goes_where_it_is_sent_as_a_whole() -> None:
    there = Blocks.of(make("zero points", 7, 200, 64), torch.float32).to(torch.device("meta"))
    assert there.zeros is not None
    assert {each.device.type for each in (there.codes, there.scales, there.zeros)} == {"meta"}
    assert there.device.type == "meta"
    levels = Blocks.of(make("levels", 7, 200, 64), torch.float32).to("meta").levels
    assert levels is not None
    assert levels.device.type == "meta"
    assert there.nbytes == 7 * (2 * 64 + 4 * 4 + 4 * 4)


@pytest.mark.parametrize("sign", [0, 128])
def test_a_group_of_e4m3_with_a_nan_is_none_of_numbers(sign: int) -> None:
    own = make("e4m3", 3, 200, 64)
    assert isinstance(own, Bits8)
    codes = own.codes.view(torch.uint8) & 119  # which is no NaN
    codes[1, 70] = 127 | sign
    found = Blocks.of(Bits8(codes.view(torch.float8_e4m3fn), 64, own.scales), torch.float32)
    assert found.scales.isnan().nonzero().tolist() == [[1, 1]]
    assert own.scales.isfinite().all()


def test_a_weight_takes_what_was_planned_with() -> None:
    for inputs, group in ((256, 128), (300, 300), (576, 64)):
        found = Blocks.of(make("int8", 5, inputs, group), torch.float32)
        assert found.nbytes <= bytes_in_8_bits(5, inputs, group) <= 1.03 * found.nbytes
