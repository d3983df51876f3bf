"""Modules that keep a state as a fused layer has them: two linears, and what the C extension does between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inference.kernels.native_recurrence import Recurrence
from inference.kernels.native_state import Convolution
from inference.kernels.native_state_layers import StateLayout, StateWeights
from inference.models.layers import Linears, MixerParts, OtherShape
from inference.models.linears import NativePack
from inference.recurrent.modules import DeltaNet, Mamba, Mamba2, ShortConvolution, StateModule
from inference.recurrent.selecting import mamba_parts

_BY_HEAD = ("in_proj_qkvz", "in_proj_ba")
_DELTA = (  # linears of queries, keys and values, of gates, of shares and of steps
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"),
    _BY_HEAD,
)


def mixers_of(rebuilt: Mapping[nn.Module, StateModule], pack: NativePack) -> dict[nn.Module, MixerParts]:
    """Return what a stack of C computes of each; raise OtherShape if it can't of one.

    `pack`: packs exactly, to stay.
    """
    return {module: _mixer(module, each, pack) for module, each in rebuilt.items()}


def _mixer(module: nn.Module, rebuilt: StateModule, pack: NativePack) -> MixerParts:
    found = None
    if isinstance(rebuilt, DeltaNet):
        found = _delta_net(module, rebuilt)
    elif isinstance(rebuilt, Mamba2):
        found = _mamba2(module, rebuilt)
    elif isinstance(rebuilt, Mamba):
        found = mamba_parts(module, rebuilt, pack)
    elif isinstance(rebuilt, ShortConvolution):
        found = _short_convolution(module, rebuilt)
    if found is None:
        raise OtherShape(f"`{type(module).__name__}` keeps a state")
    if found.into.in_few_bits not in (0, len(found.into.names)):
        raise OtherShape("what it reads its states by is in few bits in part")
    return found


def _delta_net(module: Any, net: DeltaNet) -> MixerParts | None:
    names = next((names for names in _DELTA if all(hasattr(module, name) for name in names)), None)
    convolve, rule = net.convolve, net.rule
    if names is None or not isinstance(convolve, Convolution) or not isinstance(rule, Recurrence):
        return None
    heads = rule.heads
    keys, values = heads.keys * heads.key_dim, heads.values * heads.value_dim
    gates = 2 * keys + values
    layout = StateLayout(
        width=gates + values + 2 * heads.values,
        mixed=0,
        queries=0,
        keys=keys,
        values=2 * keys,
        gates=gates,
        shares=gates + values,
        steps=gates + values + heads.values,
    )
    order = _order_by_head(module) if names == _BY_HEAD else None
    state = StateWeights(layout=layout, convolution=convolve, recurrence=rule)
    return MixerParts(Linears(module, names, order), _out(module), state)


def _order_by_head(module: Any) -> Tensor:
    """Return the order in which what lies head by head is one kind behind the other, by its own code."""
    counted = (torch.arange(module.get_submodule(name).out_features)[None, None] for name in _BY_HEAD)
    before = module.in_proj_qkvz.out_features
    q, k, v, z, b, a = (each.flatten() for each in module.fix_query_key_value_ordering(*counted))
    return torch.cat((q, k, v, z, b + before, a + before))


def _mamba2(module: Any, net: Mamba2) -> MixerParts | None:
    convolve, scan = net.convolve, net.scan
    if net.multiplies or not isinstance(convolve, Convolution) or not isinstance(scan, Recurrence):
        return None
    heads = scan.heads
    inner, keys = heads.values * heads.value_dim, heads.keys * heads.key_dim
    layout = StateLayout(
        width=inner + heads.channels + heads.values,
        gates=0,
        mixed=inner,
        values=0,
        keys=inner,
        queries=inner + keys,
        steps=inner + heads.channels,
    )
    norm = module.norm if net.norms else None
    state = StateWeights(
        layout=layout,
        convolution=convolve,
        recurrence=scan,
        norm=None if norm is None else norm.weight,
        norm_size=0 if norm is None else getattr(norm, "group_size", inner),
        norm_eps=0.0 if norm is None else norm.variance_epsilon,
    )
    return MixerParts(Linears(module, ("in_proj",)), _out(module), state)


def _short_convolution(module: Any, net: ShortConvolution) -> MixerParts | None:
    convolve = net.convolve
    if not isinstance(convolve, Convolution):
        return None
    n = convolve.channels
    layout = StateLayout(width=3 * n, before=0, behind=n, mixed=2 * n)
    state = StateWeights(layout=layout, convolution=convolve)
    return MixerParts(Linears(module, ("in_proj",)), _out(module), state)


def _out(module: nn.Module) -> Linears:
    return Linears(module, ("out_proj" if hasattr(module, "out_proj") else "o_proj",))
