from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from inference.models.fuse import merge_linears  # noqa: E402
from inference.models.quantised import QuantisedLinear, keep_codes  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402


class Attention(nn.Module):
    def __init__(self, *, bias: bool = True, one_without: bool = False) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8, bias=bias)
        self.k = nn.Linear(8, 4, bias=bias and not one_without)
        self.v = nn.Linear(8, 4, bias=bias)
        self.o = nn.Linear(8, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        together: Tensor = self.o(self.q(x) + torch.cat([self.k(x), self.v(x)], -1))
        return together


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.a(x) + self.b(x) + self.b(x)
        return result


class Adapted(nn.Linear):
    """Not a plain linear: it computes something else."""


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 8)


@pytest.mark.parametrize("bias", [True, False])
def test_linears_of_one_input_become_one_and_compute_the_same(x: Tensor, bias: bool) -> None:
    model = Attention(bias=bias)
    expected = model(x)
    merges = merge_linears(model, lambda: model(x))
    assert [merge.names for merge in merges] == [("q", "k", "v")]
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert torch.allclose(model(2 * x), model(2 * x))
    assert sum(type(module) is nn.Linear for module in model.modules()) == 2


def test_undoing_gives_the_linears_back_without_a_copy(x: Tensor) -> None:
    model = Attention()
    weight = model.k.weight.clone()
    expected = model(x)
    (merge,) = merge_linears(model, lambda: model(x))
    merge.undo()
    assert torch.equal(model.k.weight, weight)
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert model.q.weight.untyped_storage().data_ptr() == model.v.weight.untyped_storage().data_ptr()


def test_biases_of_some_only_keep_them_apart(x: Tensor) -> None:
    model = Attention(one_without=True)
    assert merge_linears(model, lambda: model(x)) == []


def test_linear_that_is_called_twice_stays(x: Tensor) -> None:
    model = Twice()
    assert merge_linears(model, lambda: model(x)) == []


def test_subclasses_of_linear_stay(x: Tensor) -> None:
    model = Attention()
    model.k = Adapted(8, 4)
    (merge,) = merge_linears(model, lambda: model(x))
    assert merge.names == ("q", "v")


def test_equal_inputs_that_are_not_one_tensor_are_refused(x: Tensor) -> None:
    model = Attention()
    merge_linears(model, lambda: model(x))
    model.q(x)
    with pytest.raises(AssertionError):
        model.k(x.clone())


def test_results_are_not_kept_after_the_last_was_taken(x: Tensor) -> None:
    model = Attention()
    merge_linears(model, lambda: model(x))
    model(x)
    shared = model.q.shared
    assert (shared.given, shared.waiting) == (None, {})


@pytest.mark.parametrize("bias", [False, True])
def test_linears_in_4_bits_become_one_in_4_bits(x: Tensor, bias: bool) -> None:
    block = Attention(bias=bias)
    for name in ("q", "k", "v"):
        own = getattr(block, name)
        keep_codes(own, round_rows(own.weight.detach(), "nf4"))
    expected = block(x)
    (merge,) = merge_linears(block, lambda: block(x))
    joint = merge.parent.get_submodule(merge.names[0]).joint
    assert isinstance(joint, QuantisedLinear)
    assert torch.equal(block(x), expected)
    merge.undo()
    assert all(isinstance(getattr(block, name), QuantisedLinear) for name in merge.names)
    assert torch.equal(block(x), expected)


def test_linears_in_4_bits_that_are_unlike_stay_apart(x: Tensor) -> None:
    block = Attention()
    for name, kind in (("q", "nf4"), ("k", "fp4")):
        own = getattr(block, name)
        keep_codes(own, round_rows(own.weight.detach(), kind))
    assert merge_linears(block, lambda: block(x)) == []
