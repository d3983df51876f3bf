"""Latent attention is found by what it computes, and computes the same over latents."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.native import Library, WeightKind, open_library  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.attending import ATTENTION, attend_by  # noqa: E402
from inference.models.latent import Latent, find_latents, forget_latents, latent_of  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits  # noqa: E402

FAMILIES = (
    "deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu axk1 longcat_flash kimi_linear bailing_hybrid"
).split()
STATES = ("kimi_linear", "bailing_hybrid")  # with layers that keep one, by code of their own
RANK, ROTATED = 32, 16  # of the toys


@pytest.fixture(scope="module")
def library() -> Library:
    torch.set_num_threads(1)
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


def near(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).abs().max() / expected.abs().max()) < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
def test_attention_over_latents_gives_the_models_own_logits(
    family: str, native: bool, library: Library
) -> None:
    model = toy_model(family)
    expected = own_logits(model, PROMPT)
    fuse, extension = family in STATES, library if native else None
    options = Options(library=extension, without="off", fuse=fuse, max_total_tokens=256)
    served = bring_up(model, options)
    assert served.level is (Level.NATIVE if native else Level.PAGED_MERGED)
    latents = [latent_of(each) for each in model.modules()]
    count = len([each for each in latents if each is not None])
    assert count
    assert served.kv_bytes == 4 * count * latents_elements(model)
    assert near(served_logits(served, 21), expected)


def latents_elements(model: nn.Module) -> int:
    """Return how many numbers one layer keeps of a token."""
    text: Any = model.config.get_text_config()
    size: int = text.kv_lora_rank + text.qk_rope_head_dim
    return size


def test_every_heads_keys_and_values_are_kept_without_it(library: Library) -> None:
    def kept(latents: bool) -> int:
        options = Options(library=library, latents=latents, fuse=False, max_total_tokens=256)
        served = bring_up(toy_model("deepseek_v3"), options)
        assert served.level is Level.NATIVE
        assert served.exact
        return served.kv_bytes

    model = toy_model("deepseek_v3")
    text = model.config
    each = text.qk_nope_head_dim + text.qk_rope_head_dim + text.v_head_dim
    assert kept(latents=False) == 4 * text.num_hidden_layers * text.num_attention_heads * each
    assert kept(latents=True) == 4 * text.num_hidden_layers * latents_elements(model)


@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "int8"])
def test_where_latents_are_not_right_every_heads_keys_are_kept(
    rounds: bool, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Latent.expand
    monkeypatch.setattr(Latent, "expand", lambda self, found: 3 * own(self, found))
    model = toy_model("minicpm3")
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, quantize=rounds, fuse=False, max_total_tokens=256))
    assert served.level is Level.NATIVE
    assert served.kv_bytes > 4 * model.config.num_hidden_layers * latents_elements(model)
    assert not any(map(latent_of, model.modules()))
    assert rounds or near(served_logits(served, 21), expected)


def attention_of(model: nn.Module) -> Any:
    return next(each for each in model.modules() if hasattr(each, "expand_kv"))


def wrongly(self: Any, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = type(self).expand_kv(self, latent, rotated)
    return keys, values + 0.01


def with_a_bias(module: Any) -> None:
    module.kv_b_proj.bias = nn.Parameter(torch.ones(module.kv_b_proj.out_features))


def of_another_shape(module: Any) -> None:
    module.v_head_dim += 1


def of_another_kind(module: Any) -> None:
    module.kv_b_proj = nn.Sequential(module.kv_b_proj)


def that_computes_otherwise(module: Any) -> None:
    module.expand_kv = MethodType(wrongly, module)


@pytest.mark.parametrize("change", [with_a_bias, of_another_shape, of_another_kind, that_computes_otherwise])
def test_other_attention_is_left_as_it_is(change: Any) -> None:
    model = toy_model("deepseek_v3")
    changed = attention_of(model)
    change(changed)
    found = find_latents(model)
    assert len(found) == model.config.num_hidden_layers - 1
    assert changed not in [each.module for each in found]


def test_there_is_none_in_other_families() -> None:
    assert not find_latents(toy_model("llama"))


def test_a_linear_that_an_adapter_adds_to_makes_keys_and_values() -> None:
    model = toy_model("deepseek_v3")
    adapted = "model.layers.0.self_attn.kv_b_proj"
    found = find_latents(model, [adapted])
    assert len(found) == model.config.num_hidden_layers - 1
    assert model.get_submodule("model.layers.0.self_attn") not in [each.module for each in found]


def test_its_own_method_is_back_where_its_own_attention_is() -> None:
    model = toy_model("deepseek_v3")
    expected = own_logits(model, PROMPT)
    latents = find_latents(model)
    attend_by(model, ATTENTION)
    assert all(latent_of(each.module) is each for each in latents)
    attend_by(model, "eager")
    assert not any(map(latent_of, model.modules()))
    assert torch.equal(own_logits(model, PROMPT), expected)
    forget_latents(latents)
    attend_by(model, ATTENTION)
    assert not any(map(latent_of, model.modules()))


def test_what_is_packed_is_the_linear_again(library: Library) -> None:
    from inference.cpu.latents import pack_latents
    from inference.levels.packing import exact_pack

    model = toy_model("deepseek_v3").bfloat16().float()
    latents = find_latents(model)
    weights = [each.linear.weight.clone() for each in latents]
    swaps = pack_latents(latents, exact_pack(Options(library=library), library))
    assert {swap.packed.form for swap in swaps} <= {WeightKind.BFLOAT16, WeightKind.CODED}
    assert all(each.linear is swap.packed for each, swap in zip(latents, swaps, strict=True))
    for swap in swaps:
        swap.undo()
    for latent, weight in zip(latents, weights, strict=True):
        assert torch.equal(latent.linear.get_weight().float(), weight)
