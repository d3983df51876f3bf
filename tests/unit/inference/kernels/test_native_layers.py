"""Layers in C: right by a float64 oracle and by transformers, and the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from inference.kernels.choosing import Choosing
from inference.kernels.gating import Gating
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_attention import NativeCacheLayer
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape
from inference.models.paged import LayerShape
from tests.unit.inference.paged_attention import (
    ISAS,
    LIBRARIES,
    Pieces,
    built,
    every_library,
    native_step,
    page_count,
    page_table,
    steps_of,
    whole,
)
from tests.unit.inference.paper_layers import (
    LAYER_KINDS,
    NORMS,
    PaperLayer,
    forward,
    native,
    random_layer,
    rotary,
    with_head_norms,
    with_mixture,
)
from tests.unit.inference.paper_mixtures import random_mixture

torch.set_num_threads(1)
pytestmark = built
SHAPE = StackShape(
    hidden=48, heads=6, kv_heads=2, head_dim=16, inner=96, eps=1e-5, scaling=0.25, rotary_dim=None
)


def run(
    stack: NativeStack,
    inputs: list[Tensor],
    steps: list[Pieces],
    rotary_bases: tuple[float, ...] = (1e4,),
    seed: int = 0,
) -> list[Tensor]:
    """Return what the stack gives of each sequence (tokens, hidden), computed by steps of pieces."""
    lengths = [len(each) for each in inputs]
    table = page_table(lengths, spare=1, seed=seed)
    found = [torch.full_like(each, torch.nan) for each in inputs]
    size = stack.shape.head_dim if stack.shape.rotary_dim is None else stack.shape.rotary_dim
    for pieces in steps:
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in pieces])
        rotaries = [rotary(positions, size, stack.shape.interleaved, base) for base in rotary_bases]
        hidden = torch.cat([inputs[i][start:stop] for i, start, stop in pieces])
        rows = stack.run(
            hidden, [cos for cos, _ in rotaries], [sin for _, sin in rotaries], native_step(pieces, table)
        )
        for (i, start, stop), part in zip(pieces, rows.split([b - a for _, a, b in pieces]), strict=True):
            found[i][start:stop] = part
    return found


def sequence(length: int, hidden: int = SHAPE.hidden, seed: int = 0) -> Tensor:
    return torch.randn(length, hidden, generator=torch.Generator().manual_seed(1000 * seed + length))


def layers(shape: StackShape, norms: tuple[str, ...] = NORMS[:2]) -> list[PaperLayer]:
    return [random_layer(shape, norms, seed) for seed in range(2)]


def without_gates(shape: StackShape, norms: tuple[str, ...] = NORMS[:2], **changes: Any) -> list[PaperLayer]:
    made = [random_layer(shape, norms, seed, gates=False) for seed in range(2)]
    return [replace(with_biases(each), **changes) for each in made]


def with_biases(layer: PaperLayer) -> PaperLayer:
    return replace(layer, biases={name: 0.3 * weight[:, 0] for name, weight in layer.linears.items()})


GEMMA = replace(SHAPE, activation="gelu_tanh", softcap=10.0)
PARTIAL = replace(SHAPE, rotary_dim=6)
PAIRS = replace(SHAPE, rotary_dim=8, interleaved=True, activation="gelu")
GRANITE = replace(SHAPE, residual=0.22, scaling=0.1)
ODD = replace(SHAPE, hidden=50, inner=75, head_dim=10, heads=5, kv_heads=1)  # nothing ends with a panel
CENTRED = replace(SHAPE, centred=True, activation="gelu")
RELU, SQUARED = (replace(CENTRED, activation=name, residual=0.5) for name in ("relu", "squared_relu"))
ODD_CENTRED = replace(ODD, centred=True, activation="gelu_tanh")
TWO = Choosing(scoring="softmax", chosen=2, normalises=True)
GROUPS = Choosing(scoring="sigmoid", chosen=3, normalises=True, scale=2.5, groups=4, kept=2, best=2)
GPT_OSS = Gating(gates=True, activation="silu", factor=1.702, limit=2.0, offset=1.0)
MIXTURES = {
    "Mixtral": (
        SHAPE,
        [with_mixture(each, random_mixture(48, TWO, seed=i)) for i, each in enumerate(layers(SHAPE))],
    ),
    "DeepSeek": (  # whose first layer has no experts, and an MLP of another size
        SHAPE,
        [
            layers(SHAPE)[0],
            with_mixture(layers(SHAPE)[1], random_mixture(48, GROUPS, corrects=True), inner=40),
        ],
    ),
    "Qwen 2 MoE": (
        SHAPE,
        [
            with_mixture(
                each, random_mixture(48, replace(TWO, normalises=False), gated=True, seed=i), inner=64
            )
            for i, each in enumerate(layers(SHAPE, NORMS))
        ],
    ),
    "odd mixtures": (
        ODD,
        [
            with_mixture(
                layers(ODD)[0], random_mixture(50, TWO, count=5, inner=21, gating=GPT_OSS, bias=True)
            ),
            with_mixture(
                layers(ODD)[1], random_mixture(50, GROUPS, count=12, inner=64, gated=True), inner=75
            ),
        ],
    ),
}
STACKS: dict[str, tuple[StackShape, list[PaperLayer]]] = {
    "Llama": (SHAPE, layers(SHAPE)),
    "biases": (SHAPE, [with_biases(layer) for layer in layers(SHAPE)]),
    "norms of each head": (SHAPE, [with_head_norms(layer, SHAPE, together=False) for layer in layers(SHAPE)]),
    "OLMo 2": (SHAPE, [with_head_norms(layer, SHAPE, together=True) for layer in layers(SHAPE, NORMS[2:])]),
    "Gemma 2": (
        GEMMA,
        [replace(layer, window=w) for layer, w in zip(layers(GEMMA, NORMS), (9, None), strict=True)],
    ),
    "chunks in one layer": (
        SHAPE,
        [replace(layer, chunk=c) for layer, c in zip(layers(SHAPE), (7, None), strict=True)],
    ),
    "Gemma 3": (GEMMA, [replace(layer, rotary=i) for i, layer in enumerate(layers(GEMMA, NORMS))]),
    "Granite": (GRANITE, layers(GRANITE)),
    "no rotation in one layer": (SHAPE, [replace(layers(SHAPE)[0], rotary=None), layers(SHAPE)[1]]),
    "a part rotated": (PARTIAL, layers(PARTIAL)),
    "pairs rotated, exact GELU": (PAIRS, layers(PAIRS)),
    "no norms at all": (SHAPE, [random_layer(SHAPE, ())]),
    "odd sizes": (ODD, layers(ODD)),
    "a scaling and sinks of its own": (
        SHAPE,
        [replace(layers(SHAPE)[0], scaling=0.4, sinks=torch.arange(6.0))],
    ),
    "no layers": (SHAPE, []),
    "GPT-NeoX": (CENTRED, without_gates(CENTRED, parallel=True)),
    "OPT": (RELU, without_gates(RELU)),
    "Bloom": (CENTRED, without_gates(CENTRED, slopes=2.0 ** -torch.arange(6), rotary=None)),
    "Arcee": (replace(SQUARED, centred=False), without_gates(replace(SQUARED, centred=False))),
    "Cohere": (
        CENTRED,
        [
            replace(with_head_norms(layer, CENTRED, together=True), parallel=True)
            for layer in layers(CENTRED, NORMS[:2])
        ],
    ),
    "centred norms of each head": (
        CENTRED,
        [with_head_norms(layer, CENTRED, together=False) for layer in layers(CENTRED)],
    ),
    "odd sizes, without gates": (ODD_CENTRED, without_gates(ODD_CENTRED, parallel=True)),
    "a mixture beside attention": (
        CENTRED,
        [
            replace(with_mixture(each, random_mixture(48, TWO, seed=i)), parallel=True)
            for i, each in enumerate(layers(CENTRED))
        ],
    ),
    **MIXTURES,
}
BASES = (1e4, 100.0)


@every_library
@pytest.mark.parametrize(("shape", "papers"), STACKS.values(), ids=STACKS.keys())
@pytest.mark.parametrize("length", [5, 96, 97, 400], ids=["few rows", "a tile", "two tiles", "many rows"])
def test_it_agrees_with_float64(
    library: Library, shape: StackShape, papers: list[PaperLayer], length: int
) -> None:
    x = sequence(length, shape.hidden)
    stack = native(library, papers, shape, page_count([length], 1), WeightKind.FLOAT32)
    (found,) = run(stack, [x], whole([len(x)]), BASES)
    size = shape.head_dim if shape.rotary_dim is None else shape.rotary_dim
    rotaries = [rotary(torch.arange(length), size, shape.interleaved, base) for base in BASES]
    wanted = forward(papers, shape, x, rotaries)
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@every_library
@pytest.mark.parametrize(("shape", "papers"), STACKS.values(), ids=STACKS.keys())
def test_a_bfloat16_cache_changes_what_rounding_changes(
    library: Library, shape: StackShape, papers: list[PaperLayer]
) -> None:
    x = sequence(40, shape.hidden)
    stacks = [
        native(library, papers, shape, page_count([40], 1), WeightKind.FLOAT32, dtype)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    wide, narrow = (run(stack, [x], whole([40]), BASES)[0] for stack in stacks)
    difference = (wide - narrow).norm() / wide.norm()
    assert (1e-5 if papers else 0) <= difference <= (1e-2 if papers else 0)


@pytest.mark.parametrize("kind", LAYER_KINDS)
@pytest.mark.parametrize(("shape", "papers"), STACKS.values(), ids=STACKS.keys())
def test_one_token_at_a_time_gives_the_same_bits(
    kind: WeightKind, shape: StackShape, papers: list[PaperLayer]
) -> None:
    x = sequence(349, shape.hidden)  # more rows than threads prepare for themselves
    for isa in ISAS:
        stack = native(LIBRARIES[isa, 3], papers, shape, page_count([349], 1), kind)
        (at_once,) = run(stack, [x], whole([len(x)]), BASES)
        steps = [[(0, 0, 300)], *([(0, at, at + 1)] for at in range(300, 349))]
        (single,) = run(stack, [x], steps, BASES, seed=1)
        assert torch.equal(at_once, single)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_pieces_pages_and_threads_change_no_bit(data: st.DataObject) -> None:
    shape, papers = STACKS[data.draw(st.sampled_from(["Llama", "OLMo 2", "Gemma 2", "odd sizes", *MIXTURES]))]
    kind = data.draw(st.sampled_from(LAYER_KINDS))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    kv_dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    inputs = [sequence(length, shape.hidden, seed) for seed, length in enumerate(lengths)]
    isa = data.draw(st.sampled_from(ISAS))
    library = LIBRARIES[isa, data.draw(st.sampled_from([1, 3]))]
    together = native(library, papers, shape, page_count(lengths, 1), kind, kv_dtype)
    found = run(together, inputs, data.draw(steps_of(lengths)), seed=data.draw(st.integers(0, 9)))
    for x, rows in zip(inputs, found, strict=True):
        alone = native(LIBRARIES[isa, 1], papers, shape, page_count([len(x)], 1), kind, kv_dtype)
        assert torch.equal(run(alone, [x], whole([len(x)]))[0], rows)


TINY = {"hidden_size": 64, "num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 99}
CONFIGS = {
    "Llama": LlamaConfig(
        intermediate_size=96, num_attention_heads=4, attention_bias=True, mlp_bias=True, **TINY
    ),
    "Qwen 3": Qwen3Config(intermediate_size=100, num_attention_heads=6, head_dim=20, **TINY),
}


@every_library
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_it_agrees_with_transformers(library: Library, config: LlamaConfig | Qwen3Config) -> None:
    torch.manual_seed(0)
    model = (LlamaForCausalLM if isinstance(config, LlamaConfig) else Qwen3ForCausalLM)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    ids = torch.randint(0, 99, (1, 40))
    positions = torch.arange(40)
    with torch.inference_mode():
        wanted = model(input_ids=ids).logits[0]
        hidden = model.model.embed_tokens(ids)[0]
        cos, sin = (each[0] for each in model.model.rotary_emb(hidden[None], positions[None]))
        stack = _stack_of(library, model, config)
        table = np.array([[2, 0, 1]], dtype=np.int32)
        rows = [
            stack.run(hidden[a:b], cos[a:b], sin[a:b], native_step([(0, a, b)], table))
            for a, b in ((0, 17), (17, 39), (39, 40))
        ]
        found = model.lm_head(model.model.norm(torch.cat(rows)))
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def _stack_of(library: Library, model: torch.nn.Module, config: LlamaConfig | Qwen3Config) -> NativeStack:
    def pack(*linears: torch.nn.Linear) -> PackedLinear:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        weight = torch.cat([linear.weight for linear in linears])
        return PackedLinear.pack(library, weight, torch.cat(biases) if biases else None, WeightKind.FLOAT32)

    packed = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        packed.append(
            LayerWeights(
                qkv=pack(attention.q_proj, attention.k_proj, attention.v_proj),
                out=pack(attention.o_proj),
                gate_up=pack(mlp.gate_proj, mlp.up_proj),
                down=pack(mlp.down_proj),
                input_norm=layer.input_layernorm.weight,
                mid_norm=layer.post_attention_layernorm.weight,
                query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
                key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
                cache=NativeCacheLayer(library, LayerShape(2, attention.head_dim, attention.head_dim), 3),
            )
        )
    shape = StackShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=2,
        head_dim=model.model.layers[0].self_attn.head_dim,
        inner=config.intermediate_size,
        eps=config.rms_norm_eps,
        scaling=model.model.layers[0].self_attn.scaling,
    )
    return NativeStack(library, packed, shape)


def test_weights_that_do_not_fit_are_refused() -> None:
    library = next(iter(LIBRARIES.values()))
    with pytest.raises(AssertionError):
        native(library, layers(SHAPE), replace(SHAPE, inner=SHAPE.inner - 1), 3, WeightKind.FLOAT32)


def test_an_embedding_for_each_layer_is_wanted() -> None:
    stack = native(next(iter(LIBRARIES.values())), STACKS["Gemma 3"][1], GEMMA, 3, WeightKind.FLOAT32)
    with pytest.raises(AssertionError):
        run(stack, [sequence(3)], whole([3]), rotary_bases=(1e4,))
