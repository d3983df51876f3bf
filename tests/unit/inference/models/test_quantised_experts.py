"""Experts in few bits compute what they stand for, by torch and packed, and are put back in these bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.cpu.experts import NativeExperts  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.kernels.native_experts import ExpertsMemory  # noqa: E402
from inference.models.linears import native_pack  # noqa: E402
from inference.models.quantised_experts import (  # noqa: E402
    QuantisedExperts,
    expert_codes,
    is_mixture,
    keep_expert_codes,
    without_experts,
)
from inference.models.weights import expert_weights  # noqa: E402
from inference.quantised.bits4 import Bits4  # noqa: E402

FAMILIES = ("qwen3_moe", "gpt_oss", "nemotron_h")  # plain; turned, with biases, gates beside ups; ungated
GROUP = 16


def rounded(weight: Tensor, seed: int) -> Bits4:
    """Return a weight (n, k) in 4 bits, as files might have it."""
    generator = torch.Generator().manual_seed(seed)
    n, k = weight.shape
    codes = torch.randint(256, (n, k // 2), generator=generator, dtype=torch.uint8)
    scales = 0.02 + 0.02 * torch.rand((n, k // GROUP), generator=generator)
    return Bits4(codes, k, GROUP, scales, torch.arange(16.0) - 8)


def experts_of(family: str) -> tuple[nn.Module, nn.Module]:
    """Return a layer's experts in 4 bits, and the same expanded."""
    plain, kept = (
        next(each for each in toy_model(family).modules() if expert_weights(each)) for _ in range(2)
    )
    codes: dict[str, list[Bits4]] = {}
    for name, weights in expert_weights(plain).items():
        turned = weights.transpose(1, 2) if plain.is_transposed else weights
        codes[name] = [rounded(each, seed) for seed, each in enumerate(turned)]
        expanded = torch.stack([each.expand() for each in codes[name]])
        own = expanded.transpose(1, 2) if plain.is_transposed else expanded
        plain.register_parameter(name, nn.Parameter(own.contiguous(), requires_grad=False))
        del kept._parameters[name]
    keep_expert_codes(kept, codes)
    return kept, plain


def routing(experts: nn.Module, tokens: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights, index = torch.rand((tokens, experts.num_experts), generator=generator).topk(2)
    hidden = next(iter(expert_codes(experts).values()))[0].inputs
    return torch.randn((tokens, hidden), generator=generator), index, weights


@pytest.mark.parametrize("family", FAMILIES)
def test_they_compute_what_they_stand_for(family: str) -> None:
    kept, plain = experts_of(family)
    given = routing(kept)
    with torch.inference_mode():
        expected = plain(*given)
        assert float(expected.abs().max()) > 0.01
        torch.testing.assert_close(kept(*given), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_they_compute_the_same_and_are_put_back(family: str) -> None:
    library = open_library(2)
    if library is None:
        pytest.skip("the extension isn't built")
    kept, _ = experts_of(family)
    given = routing(kept)
    was = {name: list(several) for name, several in expert_codes(kept).items()}
    with torch.inference_mode():
        expected = kept(*given)
        pack = native_pack(library, None, narrow=True, round_inputs=False)
        native = NativeExperts(kept, pack, ExpertsMemory(library))
        assert {each.form for each in (*native.up, *native.down)} == {"4 bits"}
        assert not any(expert_codes(kept).values()), "what is packed is freed"
        torch.testing.assert_close(native(*given), expected, rtol=1e-4, atol=1e-4)
        restored = native.restore()
    assert restored is kept
    for name, several in was.items():
        for each, own in zip(several, expert_codes(kept)[name], strict=True):
            assert torch.equal(each.expand(), own.expand())


@pytest.mark.parametrize("family", FAMILIES)
def test_their_code_may_ask_for_the_form_of_their_weights(family: str) -> None:
    kept, plain = experts_of(family)
    assert is_mixture(kept)
    assert expert_weights(kept) == {}
    for name, weights in expert_weights(plain).items():
        asked = getattr(kept, name)
        assert (asked.shape, asked.dtype) == (weights.shape, torch.float32)


def test_they_go_where_their_module_goes_and_compute_in_its_dtype() -> None:
    kept, _ = experts_of("qwen3_moe")
    kept.to(torch.bfloat16)
    given, index, weights = routing(kept)
    with torch.inference_mode():
        found = kept(given.bfloat16(), index, weights.bfloat16())
    assert found.dtype == torch.bfloat16
    assert isinstance(kept, QuantisedExperts)
    assert kept.computed_in == torch.bfloat16


def test_a_model_is_made_without_the_weights_that_stay_elsewhere() -> None:
    model = toy_model("qwen3_moe")
    places = [
        (path, name)
        for path, module in model.named_modules()
        for name in expert_weights(module)
        if ".0." in path
    ]
    made = without_experts(type(model), places)(model.config)
    lacking = set(model.state_dict()) - set(made.state_dict())
    assert lacking == {f"{path}.{name}" for path, name in places}
