from __future__ import annotations

import pytest

pytest.importorskip("torch")

from handlers.settings.row import INT8, OF_FILES, OF_FILES_IN_4_BITS
from inference.errors import ModelUnavailable
from inference.quantised.asked import FOUR_BITS, to_do
from inference.quantised.method import READ, Method
from inference.quantised.stored import Stored

EIGHT_BITS = {"int8", "eetq", "bitsandbytes", "fp8"}


def stored(name: str) -> Stored:
    return Stored(Method(name, {}, name), {}, frozenset(), "F16", ("4 bits",), 0)


@pytest.mark.parametrize("name", [None, *READ])
@pytest.mark.parametrize("asked", [None, "int8"])
def test_to_round_to_8_bits_is_asked_for_beside_whatever_the_files_are(
    asked: str | None, name: str | None
) -> None:
    said: list[str] = []
    assert to_do(asked, None if name is None else stored(name), said.append) == asked
    assert said == []


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("gptq", {"gptq", "awq"}),
        ("marlin", {"gptq", "awq"}),
        ("awq", {"awq"}),
        ("compressed-tensors", {"compressed-tensors"}),
        ("fp8", {"fp8", "fbgemm_fp8", "mxfp8", "modelopt", "compressed-tensors"}),
        ("bitsandbytes", {"bitsandbytes"}),
        ("bitsandbytes-nf4", {"bitsandbytes"}),
        ("bitsandbytes-fp4", {"bitsandbytes"}),
        ("eetq", set()),
    ],
)
def test_what_is_said_of_the_files_must_be_so(asked: str, names: set[str]) -> None:
    for name in READ:
        if name in names:
            assert to_do(asked, stored(name), print) is None
            continue
        with pytest.raises(ModelUnavailable, match=rf"--quantize {asked} isn't what .* by \({name}\): leave"):
            to_do(asked, stored(name), print)


@pytest.mark.parametrize("asked", FOUR_BITS)
def test_bitsandbytes_4_bits_are_done_where_the_files_are_not_quantised(asked: str) -> None:
    assert to_do(asked, None, print) == asked
    assert to_do(asked, stored("bitsandbytes"), print) is None


@pytest.mark.parametrize("asked", sorted({*INT8, *OF_FILES, *OF_FILES_IN_4_BITS} - EIGHT_BITS - {*FOUR_BITS}))
def test_what_can_only_be_the_files_is_refused_where_they_are_not(asked: str) -> None:
    with pytest.raises(ModelUnavailable, match=rf"--quantize {asked}: the model's files aren't .* int8"):
        to_do(asked, None, print)


@pytest.mark.parametrize("asked", sorted(EIGHT_BITS - {"int8"}))
def test_other_ways_to_8_bits_are_done_in_this_servers_own_and_told(asked: str) -> None:
    said: list[str] = []
    assert to_do(asked, None, said.append) == "int8"
    (line,) = said
    assert f"--quantize {asked}: the files aren't quantised, and their weights are rounded to 8 bits" in line
