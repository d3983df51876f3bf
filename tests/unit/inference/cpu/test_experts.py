"""Experts by the C extension say what the model's own say, and the same of a token whatever is beside it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.cpu.experts import NativeExperts, RouterWeight, pack_mixtures, undo_mixtures  # noqa: E402
from inference.kernels.native import Library, WeightKind  # noqa: E402
from inference.kernels.native_experts import ExpertsMemory, PackedExperts  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.linears import NativePack, native_pack  # noqa: E402
from inference.models.weights import NarrowExperts, expert_weights, widen  # noqa: E402

# Plain; with biases, turned, and gates beside ups; turned; without gates
FAMILIES = ("qwen3_moe", "gpt_oss", "aria_text", "nemotron_h")
TOKENS, HIDDEN, EXPERTS, CHOSEN = 19, 64, 4, 2


@pytest.fixture(scope="module")
def memory(library: Library) -> ExpertsMemory:
    return ExpertsMemory(library)


@pytest.fixture
def pack(library: Library) -> NativePack:
    return native_pack(library, None, narrow=True, round_inputs=False, compress=True)


def experts_of(family: str) -> nn.Module:
    found = [each for each in toy_model(family).modules() if expert_weights(each)]
    for parameter in found[0].parameters():
        nn.init.normal_(parameter, std=0.3)
    return found[0]


def routing(tokens: int = TOKENS, experts: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights, index = torch.rand((tokens, experts), generator=generator).topk(CHOSEN)
    return torch.randn((tokens, HIDDEN), generator=generator), index, weights


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_compute_what_the_models_own_do(family: str, pack: NativePack, memory: ExpertsMemory) -> None:
    own = experts_of(family)
    given = routing()
    with torch.inference_mode():
        expected = own(*given)
        found = NativeExperts(own, pack, memory)(*given)
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_with_a_norm_behind_each_are_computed_by_their_own_code(
    family: str, pack: NativePack, memory: ExpertsMemory
) -> None:
    own = experts_of(family)
    given = routing()
    with torch.inference_mode():
        expected = own(*given)
        own.has_post_expert_norm, own.post_expert_norm = True, nn.Identity()
        found = NativeExperts(own, pack, memory)(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokens_bits_are_the_same_alone_and_in_any_batch(
    family: str, pack: NativePack, memory: ExpertsMemory
) -> None:
    native = NativeExperts(experts_of(family), pack, memory)
    given = routing()
    with torch.inference_mode():
        together = native(*given)
        for few in (slice(4, 5), slice(0, 7), slice(6, 19)):
            assert torch.equal(native(*(each[few] for each in given)), together[few])


def test_what_the_extension_knows_no_gates_of_is_computed_one_expert_after_the_other(
    monkeypatch: pytest.MonkeyPatch, pack: NativePack, memory: ExpertsMemory
) -> None:
    own = experts_of("qwen3_moe")
    monkeypatch.setattr(type(own), "_apply_gate", lambda _, found: found.chunk(2, -1)[0].sin(), raising=True)
    given = routing()
    monkeypatch.setattr(PackedExperts, "__call__", None)
    with torch.inference_mode():
        expected = own(*given)
        native = NativeExperts(own, pack, memory)
        torch.testing.assert_close(native(*given), expected, rtol=1e-4, atol=1e-4)
        few = [each[4:5] for each in given]
        assert torch.equal(native(*few), native(*given)[4:5])


def test_the_order_in_which_experts_are_chosen_changes_nothing(
    pack: NativePack, memory: ExpertsMemory
) -> None:
    native = NativeExperts(experts_of("qwen3_moe"), pack, memory)
    given, index, weights = routing()
    with torch.inference_mode():
        assert torch.equal(native(given, index.flip(-1), weights.flip(-1)), native(given, index, weights))


def test_one_expert_more_stands_for_none(pack: NativePack, memory: ExpertsMemory) -> None:
    own = experts_of("qwen3_moe")
    own.config._experts_implementation = "eager"  # the one that knows of it
    given, index, weights = routing()
    index[::3, 1] = EXPERTS
    with torch.inference_mode():
        expected = own(given, index, weights)
        found = NativeExperts(own, pack, memory)(given, index, weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_a_model_is_put_back_as_it_was(family: str, library: Library, pack: NativePack) -> None:
    model = toy_model(family)
    was, ids = copy.deepcopy(model.state_dict()), torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        swaps = pack_mixtures(model, library, pack, pack)
        assert len(model.state_dict()) < len(was)
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-3, atol=1e-3)
        undo_mixtures(swaps)
        assert swaps == []  # or what was packed would stay
        assert torch.equal(model(input_ids=ids).logits, expected)
    assert {name: each.shape for name, each in model.state_dict().items()} == {
        name: each.shape for name, each in was.items()
    }
    assert all(torch.equal(each, was[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES[:3])
def test_experts_in_16_bits_are_packed_and_put_back_without_being_widened(
    family: str, dtype: Dtype, pack: NativePack, memory: ExpertsMemory
) -> None:
    narrow, wide = experts_of(family), experts_of(family)
    expert_weights(narrow)["down_proj"].data[1] = 0.25  # bfloat16 holds this expert, too
    for own, kind in ((narrow, dtype), (wide, torch.float32)):
        for name, weights in expert_weights(narrow).items():
            own.register_parameter(name, nn.Parameter(weights.to(dtype).to(kind), requires_grad=False))
    was = {name: each.clone() for name, each in narrow.state_dict().items()}
    widen(narrow)
    assert isinstance(narrow, NarrowExperts)
    given = routing()
    with torch.inference_mode():
        expected = narrow(*given)
    found, same = (NativeExperts(each, pack, memory) for each in (narrow, wide))
    forms = [[each.form for each in (*native.up, *native.down)] for native in (found, same)]
    assert forms[0] == forms[1]
    with torch.inference_mode():
        assert torch.equal(found(*given), same(*given))
        restored = found.restore()
        assert torch.equal(restored(*given), expected)
    assert restored is narrow
    assert {name: each.dtype for name, each in expert_weights(restored).items()} == dict.fromkeys(
        expert_weights(restored), dtype
    )
    assert all(torch.equal(each, was[name]) for name, each in expert_weights(restored).items())


def test_experts_rounded_to_8_bits_are_put_back_as_they_compute(library: Library) -> None:
    own = experts_of("qwen3_moe").bfloat16()
    pack = native_pack(library, WeightKind.INT8, narrow=True, round_inputs=False)
    native = NativeExperts(own, pack, ExpertsMemory(library))
    expected = torch.stack([each.unpack().weight for each in native.down])
    restored = expert_weights(native.restore())["down_proj"]
    assert restored.dtype == torch.float32
    assert torch.equal(restored, expected)


def test_experts_that_compute_something_else_are_the_models_own_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = toy_model("qwen3_moe").to(torch.bfloat16), torch.arange(3, 60)[None]
    widen(model)
    experts = [each for each in model.modules() if expert_weights(each)]
    was = [{name: each.clone() for name, each in expert_weights(own).items()} for own in experts]
    right = PackedExperts.__call__
    monkeypatch.setattr(PackedExperts, "__call__", lambda *given: 1.1 * right(*given))
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        served = bring_up(model, Options(library=library, merge=False, fuse=False))
        assert served.level is Level.PAGED
        model.set_attn_implementation("eager")
        torch.testing.assert_close(model(input_ids=ids).logits, expected)
    assert [each for each in model.modules() if expert_weights(each)] == experts
    for own, weights in zip(experts, was, strict=True):
        assert {name: each.dtype for name, each in expert_weights(own).items()} == dict.fromkeys(
            weights, torch.bfloat16
        )
        assert all(torch.equal(each, weights[name]) for name, each in expert_weights(own).items())


def test_rounded_experts_are_chosen_by_an_exact_router(library: Library, pack: NativePack) -> None:
    model = toy_model("qwen3_moe")
    rounded = native_pack(library, WeightKind.INT8, narrow=True, round_inputs=False)
    swaps = pack_mixtures(model, library, rounded, pack)
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
    family: str, library: Library, pack: NativePack
) -> None:
    model = toy_model(family).to(torch.bfloat16)
    widen(model)  # as models are loaded
    linears = {name for name, each in model.named_parameters() if each.dim() == 2}
    assert [len(swap.packed) for swap in pack_mixtures(model, library, pack, pack)] == [2 * EXPERTS] * 3 + [
        1
    ] * 3
    left = {name for name, each in model.named_parameters() if each.dim() > 1}
    assert left == {name for name in linears if not name.endswith(("gate.weight", "router.weight"))}


def test_what_is_no_mixture_is_left_alone(library: Library, pack: NativePack) -> None:
    model = toy_model("gpt2")
    assert pack_mixtures(model, library, pack, pack) == []
