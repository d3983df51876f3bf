from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import dtype as Dtype  # noqa: E402
from torch import nn  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.models.ends import lookup, read_ends  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.trace import Rope, Trace, decoder_layers, eager_attention, in_float32, trace_model  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402

PROMPT = np.arange(3, 20)


def traced(model: PreTrainedModel, first: int = 0) -> Trace:
    attentions = [layer.self_attn for layer in model.model.layers]
    layers = decoder_layers(model, attentions)
    assert layers == list(model.model.layers)
    trace = trace_model(model, layers, attentions, PROMPT, first)
    assert trace is not None
    return trace


def test_layers_follow_each_other_from_embedding_to_head() -> None:
    model = toy("llama")
    trace = traced(model)
    assert torch.equal(trace.layers[0].given, trace.embedded)
    for layer, following in zip(trace.layers, trace.layers[1:], strict=False):
        assert torch.equal(layer.result, following.given)
    assert trace.final is model.model.norm
    assert torch.equal(model.model.norm(trace.layers[-1].result), trace.normed)
    expected = model(input_ids=torch.from_numpy(PROMPT)[None]).logits[0]
    assert torch.equal(trace.logits, expected)


def test_layers_of_one_rotation_share_it_and_others_have_their_own() -> None:
    assert len({layer.rope for layer in traced(toy("llama")).layers}) == 1
    gemma = toy("gemma3_text", num_hidden_layers=6)
    kinds = gemma.config.layer_types
    ropes = {kind: layer.rope for kind, layer in zip(kinds, traced(gemma).layers, strict=True)}
    assert len(set(kinds)) == len(set(ropes.values())) == 2


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_rotation_can_be_called_again_for_other_positions(family: str) -> None:
    model = toy(family)
    early, late = traced(model), traced(model, first=150)
    positions = torch.arange(150, 150 + len(PROMPT))
    for one, other in zip(early.layers, late.layers, strict=True):
        assert one.rope is not None
        assert other.tables is not None
        for found, expected in zip(one.rope.tables(positions), other.tables, strict=True):
            assert torch.equal(found, expected)


def test_hooks_are_taken_away_and_attention_is_as_it_was() -> None:
    model = toy("llama")
    model.set_attn_implementation("sdpa")
    traced(model)
    assert not any(module._forward_hooks for module in model.modules())
    assert model.config._attn_implementation == "sdpa"


def test_attention_outside_one_list_of_layers_has_no_such_form() -> None:
    model = toy("llama")
    attentions = [layer.self_attn for layer in model.model.layers]
    assert decoder_layers(model, attentions[:-1]) is None
    assert decoder_layers(model, attentions[::-1]) is None
    assert decoder_layers(model, [model.model.norm]) is None


@pytest.mark.parametrize(
    ("family", "changes", "factors"),
    [
        ("llama", {}, (1.0, 1.0, None)),
        (
            "gemma2",
            {"final_logit_softcapping": 2.0},
            (8.0, 1.0, 2.0),
        ),  # the root of what a token is in numbers
        ("granite", {"embedding_multiplier": 3.0, "logits_scaling": 4.0}, (3.0, 0.25, None)),
    ],
)
def test_factors_around_the_layers_are_read_off(
    family: str, changes: dict[str, float], factors: tuple[float, float, float | None]
) -> None:
    model = toy(family, **changes)
    ends = read_ends(model, traced(model), lookup(model, PROMPT))
    assert ends.factors.embedding == pytest.approx(factors[0])
    assert ends.factors.logits == pytest.approx(factors[1])
    assert ends.factors.cap == factors[2]


@pytest.mark.parametrize("place", ["logits", "head_given"])
def test_anything_else_around_the_layers_is_refused(place: str) -> None:
    model = toy("llama")
    trace = traced(model)
    altered = replace(trace, **{place: getattr(trace, place) + 1})
    with pytest.raises(OtherShape, match="something is computed"):
        read_ends(model, altered, lookup(model, PROMPT))


def test_head_that_is_no_linear_is_refused() -> None:
    model = toy("llama")
    trace = traced(model)
    model.lm_head = nn.Sequential(nn.Linear(64, 97, bias=False))
    with pytest.raises(OtherShape, match="its head is no plain linear"):
        read_ends(model, trace, lookup(model, PROMPT))


def test_layer_in_float32_computes_what_16_bits_round() -> None:
    rounded = toy("gemma3_text").bfloat16()
    exact = toy("gemma3_text").bfloat16().float()
    layers = traced(rounded).layers
    with eager_attention(rounded):
        for trace, layer in zip(layers, exact.model.layers, strict=True):
            found = in_float32(trace)
            arguments = {name: value for name, value in found.keywords.items() if name != "past_key_values"}
            wanted = layer(*found.arguments, **arguments)
            result = wanted[0] if isinstance(wanted, tuple) else wanted
            assert found.given.dtype == found.result.dtype == torch.float32
            assert torch.equal(found.given, trace.given.float())
            assert torch.allclose(found.result, result[0], rtol=1e-5, atol=1e-5)
            added = (found.result - found.given).norm()
            assert 1e-4 < float((found.result - trace.result).norm() / added) < 0.1
            assert trace.layer is not found.layer
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}


def test_layer_of_float32_is_its_own_copy() -> None:
    (trace, *_) = traced(toy("llama")).layers
    assert in_float32(trace) is trace


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_factors_are_read_in_16_bits(dtype: Dtype) -> None:
    exact, rounded = toy("granite"), toy("granite").to(dtype)
    factors = read_ends(rounded, traced(rounded), lookup(rounded, PROMPT)).factors
    wanted = read_ends(exact, traced(exact), lookup(exact, PROMPT)).factors
    assert factors.embedding == pytest.approx(3.0, rel=1e-3)
    assert factors.logits == pytest.approx(0.5, rel=1e-3)
    assert (factors.head, factors.cap) == (wanted.head, wanted.cap) == (1.0, None)


def test_rotations_are_not_rounded_to_16_bits() -> None:
    exact, rounded = toy("llama"), toy("llama").bfloat16()
    rounded.model.rotary_emb = exact.model.rotary_emb  # as loaded: its frequencies are float32 always
    ropes = [traced(model).layers[0].rope for model in (exact, rounded)]
    assert_same_tables(*ropes)


def assert_same_tables(exact: Rope | None, rounded: Rope | None) -> None:
    assert exact is not None
    assert rounded is not None
    positions = torch.tensor([0, 5, 200])
    for found, wanted in zip(rounded.tables(positions), exact.tables(positions), strict=True):
        assert torch.equal(found, wanted)
