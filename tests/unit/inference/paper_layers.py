"""Decoder layers as a paper would write them, in float64 over whole sequences; and their native form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from inference.kernels.kinds import IN_FEW_BITS
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_attention import NativeCacheLayer
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape
from inference.kernels.reference import Attention
from inference.models.paged import LayerShape
from inference.quantised import bits8
from inference.quantised.rounding4 import round_rows
from tests.unit.inference.paged_attention import Tokens, expected
from tests.unit.inference.paper_mixtures import PaperMixture

LAYER_KINDS = [kind for kind in WeightKind if kind is not WeightKind.INT6]  # which is for screens of heads
NORMS = ("input_norm", "mid_norm", "attention_norm", "mlp_norm")


@dataclass(frozen=True)
class PaperLayer:
    """The weights of a layer; those of norms that it has not are absent."""

    linears: dict[str, Tensor]  # qkv, out, gate_up (or ups), down: (n, k); a mixture may lack the last two
    biases: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    window: int | None = None
    chunk: int | None = None
    scaling: float | None = None
    sinks: Tensor | None = None
    rotary: int | None = 0
    mixture: PaperMixture | None = None
    slopes: Tensor | None = None
    parallel: bool = False
    gated: int = 0  # behind each head's query (1), or behind all (2), are gates of what heads are given
    late_norms: bool = False  # those of heads come behind the rotation
    query_scales: Tensor | None = None  # (positions,)
    xielu: tuple[float, float, float, float] | None = None

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return what the linear of that name gives."""
        bias = self.biases.get(name)
        y = x @ self.linears[name].double().T
        return y if bias is None else y + bias.double()

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        """Return the norm of that name, if there is one: RMS, or of two rows a layer norm."""
        if name not in self.norms:
            return x
        weights = self.norms[name].double()
        if weights.dim() == 1:
            return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weights
        x = x - x.mean(-1, keepdim=True)
        weight, bias = (each.unflatten(0, (-1, x.shape[-1])).squeeze(0) for each in weights)
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def random_layer(
    shape: StackShape,
    norms: tuple[str, ...] = ("input_norm", "mid_norm"),
    seed: int = 0,
    *,
    gates: bool = True,
) -> PaperLayer:
    """Return a layer with weights of the usual sizes."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "qkv": (queries + 2 * keys, shape.hidden),
        "out": (shape.hidden, queries),
        "gate_up": (2 * shape.inner if gates else shape.inner, shape.hidden),
        "down": (shape.hidden, shape.inner),
    }
    return PaperLayer(
        {name: torch.randn(n, k, generator=generator) * k**-0.5 for name, (n, k) in sizes.items()},
        norms={name: _norm(shape, shape.hidden, generator) for name in norms},
    )


def _norm(shape: StackShape, size: int, generator: torch.Generator) -> Tensor:
    """Return the weights of a norm of so many numbers, with biases if it is centred."""
    weights = 1 + 0.3 * torch.randn(size, generator=generator)
    return torch.stack([weights, 0.3 * weights.flip(0)]) if shape.centred else weights


def rotary(
    positions: Tensor, size: int, interleaved: bool = False, base: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), each (tokens, size), as transformers makes them."""
    angles = positions[:, None].double() * base ** (-torch.arange(0, size, 2).double() / size)
    angles = angles.repeat_interleave(2, 1) if interleaved else torch.cat([angles, angles], 1)
    return angles.cos().float(), angles.sin().float()


def forward(
    layers: list[PaperLayer], shape: StackShape, x: Tensor, rotaries: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return what the last layer gives of one whole sequence x (tokens, hidden), in float64."""
    x = x.double()
    for layer in layers:
        given = _attention(layer, shape, layer.norm("input_norm", x, shape.eps), rotaries)
        if layer.parallel:
            beside = _feed_forward(layer, shape, layer.norm("mid_norm", x, shape.eps))
            x = x + shape.residual * (given + beside)
            continue
        x = x + shape.residual * layer.norm("attention_norm", given, shape.eps)
        given = _feed_forward(layer, shape, layer.norm("mid_norm", x, shape.eps))
        x = x + shape.residual * layer.norm("mlp_norm", given, shape.eps)
    return x


def _feed_forward(layer: PaperLayer, shape: StackShape, x: Tensor) -> Tensor:
    given = None
    if "down" in layer.linears:
        ups = layer.linear("gate_up", x)
        if ups.shape[-1] == layer.linears["down"].shape[1]:
            inner = _activate(shape, ups, layer.xielu)
        else:
            gate, up = ups.chunk(2, -1)
            inner = _activate(shape, gate, layer.xielu) * up
        given = layer.linear("down", layer.norm("inner_norm", inner, shape.eps))
    if layer.mixture is not None:
        return layer.mixture.give(x, given)
    assert given is not None, "an MLP, or a mixture"
    return given


def native(
    library: Library,
    layers: list[PaperLayer],
    shape: StackShape,
    blocks: int,
    kind: WeightKind,
    kv_dtype: torch.dtype = torch.float32,
) -> NativeStack:
    """Return the same layers in C, over caches that hold nothing but NaN."""
    kv_shape = LayerShape(shape.kv_heads, shape.head_dim, shape.head_dim)
    caches = [NativeCacheLayer(library, kv_shape, blocks, kv_dtype) for _ in layers]
    weights = [
        _native_layer(library, layer, cache, kind) for layer, cache in zip(layers, caches, strict=True)
    ]
    return NativeStack(library, weights, shape)


def with_mixture(layer: PaperLayer, mixture: PaperMixture, inner: int | None = None) -> PaperLayer:
    """Have a mixture, with so many inner numbers of the layer's MLP for all rows; None: without one."""
    linears = {name: layer.linears[name] for name in ("qkv", "out")}
    if inner is not None:
        up, down = layer.linears["gate_up"], layer.linears["down"]
        linears |= {"gate_up": up[: 2 * inner], "down": down[:, :inner] * (down.shape[1] / inner) ** 0.5}
    return replace(layer, linears=linears, mixture=mixture)


def with_head_norms(layer: PaperLayer, shape: StackShape, together: bool) -> PaperLayer:
    """Add norms of queries and keys: of each head, or of all heads together."""
    sizes = {"query_norm": shape.heads, "key_norm": shape.kv_heads}
    dims = {name: shape.head_dim * (heads if together else 1) for name, heads in sizes.items()}
    norms = {name: _norm(shape, dim, torch.Generator().manual_seed(9)) for name, dim in dims.items()}
    return replace(layer, norms=layer.norms | norms)


def _attention(
    layer: PaperLayer, shape: StackShape, x: Tensor, rotaries: list[tuple[Tensor, Tensor]]
) -> Tensor:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    query, key, value = layer.linear("qkv", x).split([queries * (1 + bool(layer.gated)), keys, keys], -1)
    if layer.gated == 1:
        query, gate = (each.flatten(1) for each in query.view(len(x), shape.heads, 2, -1).unbind(2))
    if layer.gated == 2:
        query, gate = query.chunk(2, -1)
    query = _shape(layer, shape, "query_norm", query, rotaries)
    if layer.query_scales is not None:
        query = query * layer.query_scales[: len(x)].double()[:, None, None]
    key = _shape(layer, shape, "key_norm", key, rotaries)
    scaling = shape.scaling if layer.scaling is None else layer.scaling
    how = Attention(
        scaling=scaling,
        window=layer.window,
        chunk=layer.chunk,
        softcap=shape.softcap,
        sinks=layer.sinks,
        slopes=layer.slopes,
    )
    attended = expected(Tokens(query, key, value.view(len(x), -1, shape.head_dim)), how)
    attended = attended.flatten(1) * (gate.sigmoid() if layer.gated else 1)
    return layer.linear("out", layer.norm("attended_norm", attended, shape.eps))


def with_gates(layer: PaperLayer, shape: StackShape) -> PaperLayer:
    """Have a gate behind each head's query."""
    queries, dim = shape.heads * shape.head_dim, shape.head_dim
    own, others = layer.linears["qkv"][:queries], layer.linears["qkv"][queries:]
    both = torch.stack([own.view(-1, dim, shape.hidden), 3 * own.flip(0).view(-1, dim, shape.hidden)], 1)
    qkv = torch.cat([both.reshape(2 * queries, shape.hidden), others])
    return replace(layer, linears=layer.linears | {"qkv": qkv}, gated=1)


def with_gates_behind(layer: PaperLayer, shape: StackShape) -> PaperLayer:
    """Have a gate of each head behind all queries."""
    queries, qkv = shape.heads * shape.head_dim, layer.linears["qkv"]
    qkv = torch.cat([qkv[:queries], 3 * qkv[:queries].flip(0), qkv[queries:]])
    return replace(layer, linears=layer.linears | {"qkv": qkv}, gated=2)


def with_norms_between(layer: PaperLayer, shape: StackShape) -> PaperLayer:
    """Add norms of what attention's and the MLP's second linears read."""
    sizes = {"attended_norm": shape.heads * shape.head_dim, "inner_norm": shape.inner}
    norms = {name: _norm(shape, size, torch.Generator().manual_seed(size)) for name, size in sizes.items()}
    return replace(layer, norms=layer.norms | norms)


def _shape(
    layer: PaperLayer, shape: StackShape, norm: str, x: Tensor, rotaries: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return x (tokens, heads * head_dim) as heads, normalised and rotated."""
    of_each_head = norm in layer.norms and (shape.centred or layer.norms[norm].numel() == shape.head_dim)
    heads = (x if of_each_head else layer.norm(norm, x, shape.eps)).view(len(x), -1, shape.head_dim)
    if of_each_head and not layer.late_norms:
        heads = layer.norm(norm, heads, shape.eps)
    heads = heads if layer.rotary is None else _rotate(shape, heads, *rotaries[layer.rotary])
    return layer.norm(norm, heads, shape.eps) if layer.late_norms else heads


def _rotate(shape: StackShape, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[1]
    turned, rest = heads[..., :size], heads[..., size:]
    if shape.interleaved:
        across = torch.stack([-turned[..., 1::2], turned[..., 0::2]], -1).flatten(-2)
    else:
        across = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    return torch.cat([turned * cos.double()[:, None] + across * sin.double()[:, None], rest], -1)


def _activate(
    shape: StackShape, gate: Tensor, numbers: tuple[float, float, float, float] | None = None
) -> Tensor:
    if numbers is not None:
        above, linear, below, least = numbers
        curve = torch.expm1(gate.clamp(max=least)) - gate
        return torch.where(gate > 0, above * gate * gate, below * curve) + linear * gate
    if shape.activation == "silu":
        return silu(gate)
    if "relu" in shape.activation:
        return relu(gate).square() if shape.activation == "squared_relu" else relu(gate)
    return gelu(gate, approximate="tanh" if shape.activation == "gelu_tanh" else "none")


def _packed(library: Library, weight: Tensor, bias: Tensor | None, kind: WeightKind) -> PackedLinear:
    if kind not in IN_FEW_BITS:
        return PackedLinear.pack(library, weight, bias, kind)
    rounded = round_rows(weight, "nf4") if kind is WeightKind.BITS4 else bits8.round_rows(weight)
    codes = rounded.packable()
    assert codes is not None
    return PackedLinear.of_codes(library, codes, bias)


def _native_layer(
    library: Library, layer: PaperLayer, cache: NativeCacheLayer, kind: WeightKind
) -> LayerWeights:
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    packed = {
        name: _packed(library, weight, layer.biases.get(name), kind) for name, weight in layer.linears.items()
    }
    mixture = layer.mixture

    def pack(weight: Tensor, bias: Tensor | None) -> PackedLinear:
        return _packed(library, weight, bias, kind)

    return LayerWeights(
        qkv=packed["qkv"],
        gated=layer.gated,
        out=packed["out"],
        gate_up=packed.get("gate_up"),
        down=packed.get("down"),
        mixture=None if mixture is None else mixture.native(library, pack),
        **layer.norms,
        cache=cache,
        window=layer.window,
        chunk=layer.chunk,
        scaling=layer.scaling,
        sinks=layer.sinks,
        rotary=layer.rotary,
        slopes=layer.slopes,
        parallel=layer.parallel,
        late_norms=layer.late_norms,
        query_scales=layer.query_scales,
        xielu=layer.xielu,
    )
