"""Experts by the C extension say what the model's own say, and the same of a token whatever is beside it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.experts import NativeExperts, RouterWeight, is_experts, pack_mixtures  # noqa: E402
from inference.kernels.native import Library, WeightKind, open_library  # noqa: E402
from inference.linears import NativePack, native_pack  # noqa: E402
from inference.weights import widen  # noqa: E402

# Plain; with biases, turned, and gates beside ups; turned; without gates
FAMILIES = ("qwen3_moe", "gpt_oss", "aria_text", "nemotron_h")
TOKENS, HIDDEN, EXPERTS, CHOSEN = 19, 64, 4, 2


@pytest.fixture(scope="module")
def library() -> Library:
    library = open_library(2)
    if library is None:
        pytest.skip("the extension isn't built")
    return library


@pytest.fixture
def pack(library: Library) -> NativePack:
    return native_pack(library, None, narrow=True, round_inputs=False, compress=True)


def experts_of(family: str) -> nn.Module:
    found = [each for each in toy_model(family).modules() if is_experts(each)]
    for parameter in found[0].parameters():
        nn.init.normal_(parameter, std=0.3)
    return found[0]


def routing(tokens: int = TOKENS, experts: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights, index = torch.rand((tokens, experts), generator=generator).topk(CHOSEN)
    return torch.randn((tokens, HIDDEN), generator=generator), index, weights


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_compute_what_the_models_own_do(family: str, pack: NativePack) -> None:
    own = experts_of(family)
    given = routing()
    with torch.inference_mode():
        expected = own(*given)
        found = NativeExperts(own, pack)(*given)
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokens_bits_are_the_same_alone_and_in_any_batch(family: str, pack: NativePack) -> None:
    native = NativeExperts(experts_of(family), pack)
    given = routing()
    with torch.inference_mode():
        together = native(*given)
        for few in (slice(4, 5), slice(0, 7), slice(6, 19)):
            assert torch.equal(native(*(each[few] for each in given)), together[few])


def test_the_order_in_which_experts_are_chosen_changes_nothing(pack: NativePack) -> None:
    native = NativeExperts(experts_of("qwen3_moe"), pack)
    given, index, weights = routing()
    with torch.inference_mode():
        assert torch.equal(native(given, index.flip(-1), weights.flip(-1)), native(given, index, weights))


def test_one_expert_more_stands_for_none(pack: NativePack) -> None:
    own = experts_of("qwen3_moe")
    own.config._experts_implementation = "eager"  # the one that knows of it
    given, index, weights = routing()
    index[::3, 1] = EXPERTS
    with torch.inference_mode():
        expected = own(given, index, weights)
        found = NativeExperts(own, pack)(given, index, weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_a_model_is_put_back_as_it_was(family: str, pack: NativePack) -> None:
    model = toy_model(family)
    was, ids = copy.deepcopy(model.state_dict()), torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        swaps = pack_mixtures(model, pack, pack)
        assert len(model.state_dict()) < len(was)
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-3, atol=1e-3)
        for swap in swaps:
            swap.undo()
        assert torch.equal(model(input_ids=ids).logits, expected)
    assert {name: each.shape for name, each in model.state_dict().items()} == {
        name: each.shape for name, each in was.items()
    }
    assert all(torch.equal(each, was[name]) for name, each in model.state_dict().items())


def test_rounded_experts_are_chosen_by_an_exact_router(library: Library, pack: NativePack) -> None:
    model = toy_model("qwen3_moe")
    rounded = native_pack(library, WeightKind.INT8, narrow=True, round_inputs=False)
    swaps = pack_mixtures(model, rounded, pack)
    forms = [{each.form for each in swap.packed} for swap in swaps]
    layers = len(swaps) // 2
    assert forms == [{"int8"}] * layers + [{"float32"}] * layers


def test_a_routers_weight_is_a_tensor_for_all_else(pack: NativePack) -> None:
    weight, given, bias = torch.randn(5, 64), torch.randn(3, 64), torch.randn(5)
    routed = RouterWeight.of(weight, pack(weight, None))
    for found in (routed, routed.float(), routed.to(torch.float32), routed.type(torch.float32)):
        assert type(found) is RouterWeight
    torch.testing.assert_close(linear(given, routed), linear(given, weight))
    torch.testing.assert_close(linear(given, routed, bias), linear(given, weight, bias))
    assert torch.equal(linear(given[1:2], routed), linear(given, routed)[1:2])
    assert torch.equal(given @ routed.T, given @ weight.T)
    assert torch.equal(routed.double(), weight.double())
    assert type(routed * 2) is Tensor


@pytest.mark.parametrize("family", ["mixtral", "phimoe"])
def test_of_a_mixture_its_experts_and_routers_are_packed_and_nothing_else(
    family: str, pack: NativePack
) -> None:
    model = toy_model(family).to(torch.bfloat16)
    widen(model)  # as models are loaded
    linears = {name for name, each in model.named_parameters() if each.dim() == 2}
    assert [len(swap.packed) for swap in pack_mixtures(model, pack, pack)] == [2 * EXPERTS] * 3 + [1] * 3
    left = {name for name, each in model.named_parameters() if each.dim() > 1}
    assert left == {name for name in linears if not name.endswith(("gate.weight", "router.weight"))}


def test_what_is_no_mixture_is_left_alone(pack: NativePack) -> None:
    model = toy_model("gpt2")
    assert pack_mixtures(model, pack, pack) == []
