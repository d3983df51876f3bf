"""Decoder layers of Llama's shape, recognised by what is in them and by what it computes.

A layer has the shape if it has attention with linears q, k, v (or one for all) and o, a gated MLP
with gate, up (or one for both) and down, and root-mean-square norms before, after or around them.
What the norms, the activation and the rotation are exactly is found by trying them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from inference.kernels.choosing import Choosing
from inference.kernels.native_state_layers import StateWeights
from inference.models.linears import Numbers, weight_and_bias
from inference.models.numberless import Numberless
from inference.models.paged import Probed
from inference.models.quantised import LINEARS, codes_of
from inference.quantised.codes import Codes, join

_QKV = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
_OUT = (("o_proj",), ("out_proj",), ("dense",))
_GATE_UP = (("gate_proj", "up_proj"), ("gate_up_proj",), ("w1", "w3"), ("input_linear",))
_DOWN = (("down_proj",), ("w2",), ("output_linear",))
JOINED = (*_QKV, *_GATE_UP)  # whose linears are computed as one
LAYER_LINEARS = 4  # of which those with the same input are computed as one
_FUNCTIONS = ("act_fn", "activation_fn", "activation")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "gelu": gelu,
}


class OtherShape(Exception):
    """A layer isn't of Llama's shape; the message says what is different."""


@dataclass(frozen=True, slots=True, eq=False)
class Linears:
    """Linears of one module that get the same input, to be computed as one."""

    parent: nn.Module
    names: tuple[str, ...]
    orders: tuple[Tensor, ...] = ()  # in which the outputs of each are taken; (): as they are

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """Return their weights (n, k) and biases (n,) as one."""
        pairs = [weight_and_bias(self.parent.get_submodule(name)) for name in self.names]
        if len(pairs) == 1 and not self.orders:
            return pairs[0]
        return torch.cat([self.ordered(*each) for each in enumerate(w for w, _ in pairs)]), self._bias()

    def numbers(self) -> Numbers:
        """Return what they are packed of as one: if all are in few bits, and alike, these."""
        codes = None if self.orders else join(self.codes)
        return (*self.joined(), None) if codes is None else (Numberless.of(codes.shape), self._bias(), codes)

    def _bias(self) -> Tensor | None:
        own = [self.parent.get_submodule(name).bias for name in self.names]
        biases = [None if each is None else self.ordered(at, each) for at, each in enumerate(own)]
        first = next((each.detach().float() for each in biases if each is not None), None)
        if first is None:
            return None
        sized = zip(biases, self.sizes, strict=True)
        return torch.cat([first.new_zeros(n) if each is None else each.detach().float() for each, n in sized])

    def ordered(self, at: int, outputs: Tensor) -> Tensor:
        """Return what each of one's outputs has, outputs first, in the order in which they are taken."""
        return outputs[self.orders[at]] if self.orders else outputs

    @property
    def codes(self) -> list[Codes | None]:
        """Return of each what it is in few bits; None: it isn't."""
        return [codes_of(self.parent.get_submodule(name)) for name in self.names]

    @property
    def sizes(self) -> list[int]:
        """Return the outputs of each."""
        return [int(self.parent.get_submodule(name).out_features) for name in self.names]


@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """What a layer's root-mean-square norms multiply with: w, or 1 + w; None: there is no such norm."""

    eps: float
    before_attention: Tensor | None
    after_attention: Tensor | None
    before_mlp: Tensor | None
    after_mlp: Tensor | None
    query: Tensor | None  # of each head, or of all heads together
    key: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParts:
    """A mixture of experts in its parts."""

    block: nn.Module  # all of it
    experts: nn.Module  # all of them, as transformers has them
    router: Tensor  # (experts, hidden)
    bias: Tensor | None  # (experts,), of its logits
    correction: Tensor | None  # (experts,): of scores, where experts are chosen
    choosing: Choosing
    shared: nn.Module | None  # an MLP that all rows are given to
    gate: nn.Module | None  # a linear, by whose sigmoid that is multiplied

    def routing(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight (n, hidden) and bias of the router and the gate behind it, as of one linear."""
        if self.gate is None:
            return self.router, self.bias
        weight, bias = weight_and_bias(self.gate)
        joined = torch.cat([self.router.float(), weight.float()])
        if self.bias is None and bias is None:
            return joined, None
        biases = [
            weight.new_zeros(n) if each is None else each
            for each, n in ((self.bias, len(self.router)), (bias, 1))
        ]
        return joined, torch.cat([each.float() for each in biases])


@dataclass(frozen=True, slots=True, eq=False)
class MixerParts:
    """What keeps a state in a layer: two linears, and what is between them."""

    into: Linears
    out: Linears
    state: StateWeights


ReadMixture = Callable[[nn.Module], MixtureParts | None]  # None: it has no experts. Raises OtherShape


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """A layer of Llama's shape in its parts."""

    qkv: Linears  # or what else the layer begins with
    out: Linears
    gate_up: Linears | None  # None: a mixture shares nothing
    down: Linears | None
    norms: Norms
    activation: str
    residuals: tuple[float, ...]  # what may be multiplied with what is added to the stream
    heads: int
    inner: int
    mixture: MixtureParts | None = None  # what it gives is added to what the MLP gives
    gated: bool = False  # behind each head's query is a gate of what it is given
    state: StateWeights | None = None  # of a layer that keeps a state and doesn't attend

    @property
    def places(self) -> tuple[Linears | None, ...]:
        """Return the linears at their places, those computed as one together."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def linears(self) -> tuple[Linears, ...]:
        """Return those that there are."""
        return tuple(each for each in self.places if each is not None)


def read_layer(
    layer: nn.Module, attention: nn.Module, probed: Probed, mixture_in: ReadMixture = lambda _: None
) -> LayerParts:
    """Return a layer's parts; raise OtherShape.

    `mixture_in`: what reads mixtures of experts, where they will do.
    """
    qkv, out = _linears(attention, _QKV), _linears(attention, _OUT)
    own = [attention] if _has_sinks_alone(attention, probed.how.sinks) else []
    shape = probed.shape
    if probed.how.slopes is not None:
        raise OtherShape("its scores depend on distance")
    if shape.key_dim != shape.value_dim:
        raise OtherShape("its keys and values are of different sizes")
    heads = sum(qkv.sizes) // shape.key_dim - 2 * shape.kv_heads
    gated = heads == 2 * probed.heads
    found = _around(layer, attention, qkv, out, own, mixture_in)
    return replace(found, heads=probed.heads if gated else heads, gated=gated)


def read_state_layer(
    layer: nn.Module, mixer: nn.Module, parts: MixerParts, mixture_in: ReadMixture = lambda _: None
) -> LayerParts:
    """Return the parts of a layer that keeps a state, which are `mixer`'s; raise OtherShape."""
    found = _around(layer, mixer, parts.into, parts.out, list(mixer.modules()), mixture_in)
    return replace(found, state=parts.state)


def _around(
    layer: nn.Module,
    mixer: nn.Module,
    into: Linears,
    out: Linears,
    known: list[nn.Module],
    mixture_in: ReadMixture,
) -> LayerParts:
    """Return the parts of a layer around what mixes its tokens, of which modules are known."""
    block = _block(layer, mixer)
    mixture = mixture_in(block)
    mlp = block if mixture is None else mixture.shared
    gate_up, down = (None, None) if mlp is None else gated_mlp(mlp)
    if mixture is not None:
        known = [*known, *block.modules()]  # who read it knows them
    norms = _norms(layer, mixer, block)
    _refuse_others(layer, known, [into, out, gate_up, down])
    multiplier = getattr(layer, "residual_multiplier", 1.0)
    return LayerParts(
        qkv=into,
        out=out,
        gate_up=gate_up,
        down=down,
        norms=norms,
        activation="silu" if mlp is None else _activation(mlp),
        residuals=(1.0,) if multiplier == 1.0 else (float(multiplier), 1.0),
        heads=0,
        inner=0 if gate_up is None else sum(gate_up.sizes) // 2,
        mixture=mixture,
    )


def gated_mlp(mlp: nn.Module) -> tuple[Linears, Linears]:
    """Return the linears of a gated MLP; raise OtherShape."""
    return _linears(mlp, _GATE_UP), _linears(mlp, _DOWN)


def norm_weight(module: nn.Module) -> tuple[Tensor, float]:
    """Return what a root-mean-square norm multiplies with and its epsilon, found by trying it in float32.

    The former is float32, on the module's device. Raises OtherShape if it is another norm.
    """
    weight = getattr(module, "weight", None)
    eps = next((e for name in ("variance_epsilon", "eps") if (e := getattr(module, name, None))), None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        raise OtherShape(f"its norm `{type(module).__name__}` is no root-mean-square norm")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, len(weight), generator=generator) * torch.tensor([[1.0], [30.0], [0.01]])
    with torch.inference_mode():
        found = _plain(module)(x)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    own = weight.detach().float().cpu()
    for factor in (own, 1 + own):
        if found.shape == x.shape and torch.allclose(found, normed * factor, rtol=1e-5, atol=1e-6):
            return factor.to(weight.device).contiguous(), eps
    raise OtherShape(f"its norm `{type(module).__name__}` is no root-mean-square norm")


def _plain(module: nn.Module) -> nn.Module:
    """Return a norm in float32 on the CPU: itself, or a copy."""
    weight = module.get_parameter("weight")
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        return module
    return deepcopy(module).to("cpu", torch.float32)


def _block(layer: nn.Module, mixer: nn.Module) -> nn.Module:
    """Return what a layer has behind what mixes its tokens."""
    mlp = getattr(layer, "mlp", None)
    if isinstance(mlp, nn.Module):
        return mlp
    others = [
        module
        for name, module in layer.named_children()
        if module is not mixer and not name.endswith("norm") and any(True for _ in module.parameters())
    ]
    if len(others) != 1:
        raise OtherShape("it has no module `mlp`")
    return others[0]


def _norms(layer: nn.Module, mixer: nn.Module, block: nn.Module) -> Norms:
    given = {
        name.removesuffix("_norm") + "_layernorm" if name.endswith("_norm") else name: module
        for name, module in layer.named_children()
        if module not in (mixer, block) and any(True for _ in module.parameters())
    }
    if "pre_feedforward_layernorm" in given:  # as in Gemma 2
        order = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    elif "post_feedforward_layernorm" in given:  # as in OLMo 2
        order = ("input", "post_attention", "", "post_feedforward")
    elif "post_self_attn_layernorm" in given:  # as in GLM 4
        order = ("input", "post_self_attn", "post_attention", "post_mlp")
    elif "operator_layernorm" in given:  # as in LFM2
        order = ("operator", "", "ffn", "")
    elif "pre_ff_layernorm" in given:  # as in Bamba
        order = ("input", "", "pre_ff", "")
    else:
        order = ("input", "", "post_attention", "")
    placed = [given.pop(f"{name}_layernorm", None) for name in order]
    if given:
        raise OtherShape(f"it has a module `{next(iter(given))}`")
    for one in "qk":
        placed.append(getattr(mixer, f"{one}_norm", getattr(mixer, f"{one}_layernorm", None)))
    found = [norm_weight(module) if isinstance(module, nn.Module) else None for module in placed]
    epsilons = {each[1] for each in found if each is not None}
    if len(epsilons) != 1:
        raise OtherShape("its norms have different epsilons, or there are none")
    return Norms(epsilons.pop(), *(None if each is None else each[0] for each in found))


def _linears(parent: nn.Module, choices: tuple[tuple[str, ...], ...]) -> Linears:
    for names in choices:
        modules = [getattr(parent, name, None) for name in names]
        if all(type(module) in LINEARS for module in modules):
            return Linears(parent, names)
    raise OtherShape(f"`{type(parent).__name__}` has no linears {' or '.join(map(', '.join, choices))}")


def _activation(mlp: nn.Module) -> str:
    function = next((f for name in _FUNCTIONS if (f := getattr(mlp, name, None))), None)
    x = torch.linspace(-8, 8, 65)
    if callable(function):
        with torch.inference_mode():
            found = function(x)
        for name, known in _ACTIVATIONS.items():
            if torch.allclose(found, known(x), rtol=1e-5, atol=1e-6):
                return name
    elif isinstance(getattr(mlp, "w2", None), nn.Module):  # its code names a function: whether this, is tried
        return "silu"
    raise OtherShape(f"the activation of `{type(mlp).__name__}` is none of {', '.join(_ACTIVATIONS)}")


def _has_sinks_alone(attention: nn.Module, sinks: Tensor | None) -> bool:
    """Return whether an attention module's own parameters are the sinks that it was seen to attend with."""
    own = list(attention.parameters(recurse=False))
    return (
        sinks is not None and len(own) == 1 and torch.equal(own[0].flatten().float(), sinks.flatten().float())
    )


def _refuse_others(layer: nn.Module, modules: list[nn.Module], linears: list[Linears | None]) -> None:
    """Raise OtherShape if the layer has parameters that no part of it accounts for."""
    known = {id(each.parent.get_submodule(name)) for each in linears if each for name in each.names}
    known |= {id(each) for each in modules}
    for name, module in layer.named_modules():
        if id(module) in known or name.endswith("norm"):
            continue
        if next(module.parameters(recurse=False), None) is not None:
            raise OtherShape(f"it has a module `{name or type(layer).__name__}`")
