"""A mixture's experts on a device, beside transformers' own loop over them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.gpu.expert_ways import ExpertMultiplier, something  # noqa: E402
from inference.gpu.experts import DeviceExperts, packed_experts, swap_experts  # noqa: E402
from inference.gpu.linears import Multiplier  # noqa: E402
from inference.gpu.mixtures import ExpertWeight  # noqa: E402
from inference.gpu.ops import Ops, torch_ops, triton_ops  # noqa: E402
from inference.gpu.swaps import put_modules_back  # noqa: E402
from inference.kernels.gating import Gating  # noqa: E402
from inference.models.quantised_experts import expert_codes, keep_expert_codes  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402
from inference.quantised.codes import Codes  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402
from tests.unit.inference.gpu.device_models import DEVICE, device_ops  # noqa: E402

SILU, OF_GPT_OSS = Gating(), Gating(alternating=True, limit=7.0, factor=1.702, offset=1.0)
FAMILIES = {  # of the toys; None: the gate is the model's own
    "qwen3_moe": SILU, "mixtral": SILU, "olmoe": SILU, "gpt_oss": OF_GPT_OSS, "granitemoe": SILU,
    "glm4_moe": SILU, "deepseek_v3": SILU, "aria_text": SILU, "nemotron_h": None, "qwen3_next": SILU,
}  # fmt: skip


def swapped(family: str, ops: Ops, dtype: Dtype = torch.float32, codes: Any = None) -> list[DeviceExperts]:
    """Return what stands for a toy's experts."""
    model = toy_model(family).to(DEVICE, dtype).requires_grad_(False)
    swap_experts(model, ExpertMultiplier(Multiplier(ops)), dtype)
    return [each for each in model.modules() if isinstance(each, DeviceExperts)]


def own_result(experts: DeviceExperts, *given: Tensor) -> Tensor:
    own: Any = experts.own
    own.config._experts_implementation = "eager"
    with torch.inference_mode():
        result: Tensor = own(*given)
    return result


def assert_near(found: Tensor, expected: Tensor, near: float) -> None:
    assert found.dtype == expected.dtype
    assert (found - expected).norm() <= near * expected.norm()


@pytest.mark.parametrize("tokens", [1, 2, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_what_transformers_computes_one_expert_after_the_other(family: str, tokens: int) -> None:
    found = swapped(family, device_ops())
    assert found
    for experts in found:
        assert experts.gate == FAMILIES[family]
        given = something(experts.up, tokens, 2)
        assert_near(experts(*given), own_result(experts, *given), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tritons_kernels_give_the_same(family: str, deterministic: bool) -> None:
    pytest.importorskip("triton")
    experts = swapped(family, triton_ops(deterministic=deterministic))[0]
    for tokens in (1, 3, 20):
        given = something(experts.up, tokens, 2)
        assert_near(experts(*given), own_result(experts, *given), 1e-5)
    x, index, scores = something(experts.up, 20, 2)
    alone = torch.cat([experts(x[at : at + 1], index[at : at + 1], scores[at : at + 1]) for at in range(20)])
    if deterministic:
        assert torch.equal(alone, experts(x, index, scores))


def test_in_16_bits_they_are_off_by_rounding() -> None:
    experts = swapped("qwen3_moe", device_ops(), torch.bfloat16)[0]
    given = something(experts.up, 30, 2)
    assert_near(experts(*given), own_result(experts, *given), 2e-2)


def test_an_expert_that_there_is_not_stands_for_none() -> None:
    experts = swapped("qwen3_moe", device_ops())[0]
    x, index, scores = something(experts.up, 10, 2)
    expected = own_result(
        experts, x, index, scores.clone().index_fill_(1, torch.tensor(0, device=DEVICE), 0.0)
    )
    index[:, 0] = experts.up.experts
    assert_near(experts(x, index, scores), expected, 1e-5)


def test_they_are_put_back_as_they_were() -> None:
    model = toy_model("mixtral").to(DEVICE)
    own = [each for each in model.modules() if expert_weights(each)]
    places = swap_experts(model, ExpertMultiplier(Multiplier(device_ops())), torch.float32)
    assert len(places) == len(own) > 0
    assert not any(getattr(parent, name) in own for parent, name in places)
    put_modules_back(places)
    assert [each for each in model.modules() if expert_weights(each)] == own


class Doubled(nn.Module):
    """Says of itself what experts say, and computes something else."""

    has_gate, has_bias, is_transposed, num_experts = False, False, False, 4

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Parameter(torch.randn(4, 24, 16))
        self.down_proj = nn.Parameter(torch.randn(4, 16, 24))

    def act_fn(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for token, (experts, shares) in enumerate(zip(index, scores, strict=True)):
            for expert, share in zip(experts, shares, strict=True):
                inner = self.act_fn(self.up_proj[expert] @ x[token])
                result[token] += share * (self.down_proj[expert] @ inner)
        return result * self.times

    times = 1.0


@pytest.mark.parametrize(("times", "count"), [(1.0, 1), (2.0, 0)])
def test_those_that_compute_something_else_stay(times: float, count: int) -> None:
    model = nn.Sequential(Doubled()).to(DEVICE)
    model[0].times = times
    multiply = ExpertMultiplier(Multiplier(device_ops()))
    with torch.inference_mode():
        assert len(swap_experts(model, multiply, torch.float32)) == count


def test_torch_alone_replaces_none_on_a_device_that_it_would_wait_for() -> None:
    model = toy_model("mixtral").to("meta")
    assert not swap_experts(model, ExpertMultiplier(Multiplier(torch_ops())), torch.float32)


def test_those_of_another_dtype_stay() -> None:
    model = toy_model("mixtral").to(DEVICE, torch.bfloat16)
    assert not swap_experts(model, ExpertMultiplier(Multiplier(device_ops())), torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("ops", [torch_ops, triton_ops])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_in_few_bits_are_multiplied_so_and_given_back(family: str, ops: Any) -> None:
    model = toy_model(family).to(DEVICE).requires_grad_(False)
    layers: list[Any] = [each for each in model.modules() if expert_weights(each)][:1]
    for layer in layers:
        codes: dict[str, list[Codes]] = {}
        for name, own in expert_weights(layer).items():
            weights = own.detach().transpose(1, 2) if layer.is_transposed else own.detach()
            codes[name] = [round_rows(each.cpu(), "nf4").to(DEVICE) for each in weights]
        for name in codes:
            del layer._parameters[name]
        keep_expert_codes(layer, codes)
    given = something(ExpertWeight(torch.empty(4, 8, 64, device=DEVICE), 4), 5, 2)
    expected = layers[0](*given)
    places = swap_experts(model, ExpertMultiplier(Multiplier(ops())), torch.float32)
    assert not any(expert_codes(layers[0]).values())
    experts = next(each for each in model.modules() if isinstance(each, DeviceExperts))
    assert experts.own is layers[0]
    assert_near(experts(*given), expected, 1e-5)
    assert [each.form for each in packed_experts(experts)] == ["4 bits", "4 bits"]
    put_modules_back(places)
    assert torch.equal(layers[0](*given), expected)
