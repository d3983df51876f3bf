from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402

from inference.kernels.reference import Attention  # noqa: E402
from inference.models.layers import LayerParts, Linears, OtherShape, norm_weight, read_layer  # noqa: E402
from inference.models.paged import LayerShape, Probed  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402

PROBED = Probed(LayerShape(kv_heads=2, key_dim=16, value_dim=16), Attention(scaling=0.25), heads=4)


def parts_of(family: str) -> LayerParts:
    layer = toy(family).model.layers[0]
    return read_layer(layer, layer.self_attn, PROBED)


@pytest.mark.parametrize(("norm_class", "added"), [(LlamaRMSNorm, 0.0), (Gemma2RMSNorm, 1.0)])
def test_what_a_norm_multiplies_with_is_found_by_trying(norm_class: type[nn.Module], added: float) -> None:
    norm = norm_class(24, eps=3e-5)
    nn.init.normal_(norm.weight)
    weight, eps = norm_weight(norm)
    assert torch.equal(weight, norm.weight + added)
    assert eps == 3e-5


@pytest.mark.parametrize("norm", [nn.LayerNorm(24), nn.Linear(24, 24), nn.Identity()])
def test_another_norm_is_refused(norm: nn.Module) -> None:
    with pytest.raises(OtherShape, match=f"`{type(norm).__name__}` is no root-mean-square norm"):
        norm_weight(norm)


def test_wrong_epsilon_is_refused() -> None:
    norm = LlamaRMSNorm(24, eps=1e-3)
    norm.eps, norm.variance_epsilon = 1e-3, 1e-6  # it computes with what isn't what it says
    norm.forward = LlamaRMSNorm(24, eps=1e-3).forward
    with pytest.raises(OtherShape):
        norm_weight(norm)


def test_parts_of_a_llama_layer() -> None:
    parts = parts_of("llama")
    assert [linears.names for linears in parts.linears] == [
        ("q_proj", "k_proj", "v_proj"),
        ("o_proj",),
        ("gate_proj", "up_proj"),
        ("down_proj",),
    ]
    assert (parts.heads, parts.inner, parts.activation) == (4, 96, "silu")
    norms = parts.norms
    assert norms.before_attention is not None
    assert norms.before_mlp is not None
    assert (norms.after_attention, norms.after_mlp, norms.query, norms.key) == (None, None, None, None)


def test_merged_linears_are_one_part() -> None:
    parts = parts_of("phi3")
    assert [linears.names for linears in parts.linears[::2]] == [("qkv_proj",), ("gate_up_proj",)]
    assert (parts.heads, parts.inner) == (4, 96)


@pytest.mark.parametrize(
    ("family", "places"),
    [
        ("gemma2", {"before_attention", "after_attention", "before_mlp", "after_mlp"}),
        ("glm4", {"before_attention", "after_attention", "before_mlp", "after_mlp"}),
        ("olmo2", {"after_attention", "after_mlp", "query", "key"}),
        ("qwen3", {"before_attention", "before_mlp", "query", "key"}),
    ],
)
def test_places_of_norms(family: str, places: set[str]) -> None:
    norms = parts_of(family).norms
    names = ("before_attention", "after_attention", "before_mlp", "after_mlp", "query", "key")
    assert {name for name in names if getattr(norms, name) is not None} == places


def test_multiplier_of_what_is_added_is_tried_first() -> None:
    assert parts_of("granite").residuals == (0.3, 1.0)


def test_joined_linears_fill_up_missing_biases() -> None:
    layer = toy("llama with biases").model.layers[0]
    layer.self_attn.k_proj.bias = None
    parts = read_layer(layer, layer.self_attn, PROBED)
    assert parts.qkv is not None
    weight, bias = parts.qkv.joined()
    assert weight.shape == (4 * 16 + 2 * 32, 64)
    assert bias is not None
    assert torch.equal(bias[64:96], torch.zeros(32))
    assert torch.equal(bias[96:], layer.self_attn.v_proj.bias)


def test_missing_biases_are_filled_up_where_the_others_are() -> None:
    parent = nn.Module()
    parent.first, parent.second = (nn.Linear(4, 3, bias=bias, device="meta") for bias in (True, False))
    _, bias = Linears(parent, ("first", "second")).joined()
    assert bias is not None
    assert bias.device.type == "meta"


def test_parameter_that_no_part_accounts_for_is_refused() -> None:
    layer = toy("llama").model.layers[0]
    layer.mlp.gate = nn.Linear(64, 2)
    with pytest.raises(OtherShape, match=r"it has a module `mlp\.gate`"):
        read_layer(layer, layer.self_attn, PROBED)


def test_experts_are_refused() -> None:
    with pytest.raises(OtherShape, match="no linears gate_proj, up_proj"):
        parts_of("mixtral")


def test_unknown_activation_is_refused() -> None:
    layer = toy("llama").model.layers[0]
    for function in (nn.Tanh(), ACT2FN["gelu_10"]):  # the latter is clipped where few numbers come
        layer.mlp.act_fn = function
        with pytest.raises(OtherShape, match="none of silu, gelu_tanh, gelu"):
            read_layer(layer, layer.self_attn, PROBED)
