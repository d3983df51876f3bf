from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

from inference.kernels.native import Library, WeightKind, open_library  # noqa: E402
from inference.models.linears import NativeLinear, Pack, Packed, native_pack, pack_linears, reorder  # noqa: E402
from inference.models.lora import AdaptedLinear, Adapters, Adapting  # noqa: E402
from inference.models.weights import NarrowLinear  # noqa: E402


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 40)
        self.turned = Conv1D(16, 40)
        self.again = self.last = nn.Linear(16, 16, bias=False)
        self.own = Own(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.own(self.again(self.last(self.turned(self.first(x)))))
        return result


class Own(nn.Linear):
    """Not a plain linear: it computes something else."""


def packs() -> dict[str, Pack]:
    found: dict[str, Pack] = {"oneDNN": reorder}
    library = open_library(threads=1)
    if library is not None:
        found["native"] = native_pack(library, None, narrow=True, round_inputs=False)
    return found


@pytest.mark.parametrize("pack", packs().values(), ids=packs())
def test_packed_linears_compute_the_same_and_can_be_put_back(pack: Pack) -> None:
    model, x = Model(), torch.randn(2, 3, 8)
    expected = model(x)
    swaps = pack_linears(model, pack)
    with torch.inference_mode():
        assert torch.allclose(model(x), expected, atol=1e-5)
    assert {swap.name for swap in swaps} == {"first", "turned", "again", "last"}
    assert model.again is model.last
    assert sum(isinstance(module, Packed) for module in model.modules()) == 3
    for swap in reversed(swaps):
        swap.undo()
    assert not any(isinstance(module, Packed) for module in model.modules())
    assert type(model.turned) is Conv1D
    assert torch.allclose(model(x), expected, atol=1e-6)


def test_replaced_linear_no_longer_holds_its_weight() -> None:
    model = Model()
    first = model.first
    pack_linears(model, reorder)
    assert first.weight is None


@pytest.fixture
def library() -> object:
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


@pytest.mark.parametrize(
    ("weight", "narrow", "form"),
    [
        (torch.randn(5, 7), True, "float32"),
        (torch.randn(5, 7).bfloat16().float(), True, "bfloat16"),
        (torch.randn(5, 7).half().float(), True, "float16"),
        (torch.randn(5, 7).bfloat16(), True, "bfloat16"),
        (torch.randn(5, 7).bfloat16(), False, "float32"),
    ],
)
def test_weight_is_kept_in_the_narrowest_form_that_holds_it(
    library: Library, weight: Tensor, narrow: bool, form: str
) -> None:
    packed = native_pack(library, None, narrow=narrow, round_inputs=False)(weight, None)
    assert packed.form == form
    assert torch.equal(packed.unpack().weight.float(), weight.float())


@pytest.mark.parametrize(("kind", "round_inputs"), [(None, False), (WeightKind.BFLOAT16, True)])
def test_bfloat16_is_compressed_where_the_cpu_can(
    library: Library, kind: WeightKind | None, round_inputs: bool
) -> None:
    weight = (torch.randn(64, 128) * 0.02).bfloat16()
    pack = native_pack(library, kind, narrow=True, round_inputs=round_inputs, compress=True)
    packed = pack(weight.float(), None)
    assert packed.form == ("bfloat16 in 12 bits" if library.compresses else "bfloat16")
    assert torch.equal(packed.unpack().weight, weight)


def test_unpacked_16_bits_are_widened_as_they_are_used(library: Library) -> None:
    packed = native_pack(library, None, narrow=True, round_inputs=False)(torch.randn(5, 7).bfloat16(), None)
    assert type(packed.unpack()) is NarrowLinear


def test_int8_is_nearly_the_same(library: Library) -> None:
    weight, bias, x = torch.randn(64, 128), torch.randn(64), torch.randn(9, 128)
    packed = native_pack(library, WeightKind.INT8, narrow=True, round_inputs=False)(weight, bias)
    expected = nn.functional.linear(x, weight, bias)
    assert isinstance(packed, NativeLinear)
    assert packed.form == "int8"
    assert float((packed(x) - expected).norm() / expected.norm()) < 0.02


def test_weight_of_a_packed_linear_says_its_dtype_and_has_no_numbers() -> None:
    weight = reorder(torch.ones(3, 5), None).weight
    assert (weight.dtype, tuple(weight.shape)) == (torch.float32, (3, 5))
    with pytest.raises(TypeError, match="can't be read"):
        torch.nn.functional.linear(torch.ones(5), weight)
    with pytest.raises(TypeError, match="can't be read"):
        weight.float()


@pytest.mark.parametrize("outputs", [1, 4, 20, 32, 60, 64])
@pytest.mark.parametrize("function", [torch.sigmoid, nn.functional.silu, nn.functional.softplus])
def test_what_torch_makes_of_few_outputs_has_the_same_bits_in_any_batch(
    outputs: int, function: Callable[[Tensor], Tensor]
) -> None:
    """As of the gates of experts, and of what chooses them."""
    torch.manual_seed(0)
    pack, x = packs().get("native"), torch.randn(41, 48)
    if pack is None:
        pytest.skip("the extension isn't built")
    linear = pack(torch.randn(outputs, 48), None)
    together = function(linear(x))
    assert all(torch.equal(function(linear(x[at : at + 1])), together[at : at + 1]) for at in range(len(x)))
    step = Adapting(Adapters((), ()), x.device)
    step.begin_rows(np.where(np.arange(len(x)) == 7, 0, -1))
    beside = function(AdaptedLinear(linear, [(lambda x: x[:, :1], lambda x: x.expand(-1, outputs))], step)(x))
    assert torch.equal(beside[:7], together[:7])
    assert torch.equal(beside[8:], together[8:])
    assert not torch.equal(beside[7], together[7])
