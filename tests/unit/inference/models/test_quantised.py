"""Linears whose weights stay in 4 bits."""

from __future__ import annotations

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from inference.models.linears import drop_weight, make_linear, numbers_of, weight_and_bias  # noqa: E402
from inference.models.quantised import QuantisedLinear, codes_of, keep_codes  # noqa: E402
from inference.models.weights import asking_for_weights  # noqa: E402
from inference.quantised.bits4 import Bits4, pack_codes, whole_numbers  # noqa: E402


def weight() -> Bits4:
    codes = pack_codes(torch.randint(0, 16, (6, 32), dtype=torch.uint8))
    return whole_numbers(codes, 32, 16, torch.rand(6, 2), torch.randint(0, 16, (6, 2)))


def kept(own: Bits4, *, bias: bool = True) -> nn.Linear:
    module = nn.Linear(32, 6, bias=bias).requires_grad_(False)
    keep_codes(module, own)
    return module


@pytest.mark.parametrize("bias", [True, False])
def test_it_computes_with_what_the_codes_stand_for(bias: bool) -> None:
    own, x = weight(), torch.randn(3, 32)
    module = kept(own, bias=bias)
    assert torch.equal(module(x), linear(x, own.expand()) + (module.bias if bias else 0))
    assert torch.equal(weight_and_bias(module)[0], own.expand())


def test_in_16_bits_it_computes_as_if_its_weight_had_been_expanded_to_them() -> None:
    own, x = weight(), torch.randn(3, 32)
    module = kept(own).bfloat16()
    expected = linear(x.bfloat16(), own.expand().bfloat16()) + module.bias
    assert torch.equal(module(x), expected)
    assert module.weight.dtype == torch.bfloat16
    assert torch.equal(weight_and_bias(module)[0], own.expand().bfloat16())
    wide = deepcopy(module).float()
    assert torch.equal(wide(x), linear(x, own.expand()) + wide.bias)
    assert module.weight.dtype == torch.bfloat16


def test_its_codes_go_where_it_goes() -> None:
    module = kept(weight())
    assert module.weight.device.type == "cpu"
    module.to("meta")
    codes = codes_of(module)
    assert codes is not None
    assert codes.codes.device.type == codes.scales.device.type == module.weight.device.type == "meta"


def test_the_models_code_that_asks_for_the_weight_gets_its_numbers() -> None:
    own = weight()
    module = kept(own)
    assert module.weight.shape == (6, 32)
    with pytest.raises(TypeError, match="can't be read"):
        module.weight.sum()
    with asking_for_weights():
        assert torch.equal(module.weight, own.expand())
    assert torch.equal(module.weight, own.expand()), "it will ask again"


def test_it_is_packed_of_its_codes_and_then_has_none() -> None:
    own = weight()
    module = kept(own)
    given, bias, codes = numbers_of(module)
    assert given.shape == (6, 32)
    assert codes is own
    assert bias is not None
    assert torch.equal(bias, module.bias)
    drop_weight(module)
    assert codes_of(module) is None


def test_other_linears_are_packed_of_their_numbers() -> None:
    plain = make_linear(torch.randn(4, 8), None)
    given, bias, codes = numbers_of(plain)
    assert torch.equal(given, plain.weight)
    assert bias is None
    assert codes is None
    with pytest.raises(AssertionError, match="others compute something else"):
        keep_codes(nn.Embedding(3, 3), weight())
    assert not isinstance(plain, QuantisedLinear)
