"""Mamba's modules as a fused layer has them: what they read of what they have convolved."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inference.kernels.native_recurrence import MambaScan
from inference.kernels.native_selection import Selection
from inference.kernels.native_state import Convolution
from inference.kernels.native_state_layers import StateLayout, StateWeights
from inference.models.joined import Linears
from inference.models.layers import MixerParts
from inference.models.linears import NativePack
from inference.models.norms import norm_weight
from inference.models.other_shape import OtherShape
from inference.models.quantised import codes_of
from inference.recurrent.modules import Mamba

_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")


def mamba_parts(module: Any, net: Mamba, pack: NativePack) -> MixerParts | None:
    """Return a module's parts, its inner linears packed to stay; None if C hasn't its recurrence.

    Raises OtherShape if something else is in it.
    """
    convolve, scan = net.convolve, net.scan
    if not isinstance(convolve, Convolution) or not isinstance(scan, MambaScan):
        return None
    inner = module.x_proj, module.dt_proj
    if any(codes_of(each) is not None for each in inner) or module.x_proj.bias is not None:
        raise OtherShape("what it reads of its convolution isn't plain")
    projects, widens = (pack(each.weight, None) for each in inner)
    norms, eps = _norms(module, widens.packed.k, scan.keys)
    selection = Selection(projects=projects.packed, widens=widens.packed, scan=scan, norms=norms, eps=eps)
    n = convolve.channels
    layout = StateLayout(width=2 * n, mixed=0, gates=n)
    state = StateWeights(layout=layout, convolution=convolve, selection=selection)
    kept = tuple(
        zip((Linears(module, ("x_proj",)), Linears(module, ("dt_proj",))), (projects, widens), strict=True)
    )
    return MixerParts(Linears(module, ("in_proj",)), Linears(module, ("out_proj",)), state, kept)


def _norms(module: Any, rank: int, keys: int) -> tuple[tuple[Tensor, Tensor, Tensor] | None, float]:
    """Return what the norms of steps, and of what goes in and comes out, multiply with; and their epsilon."""
    if not hasattr(module, _NORMS[0]):
        return None, 0.0
    found = [norm_weight(getattr(module, name)) for name in _NORMS]
    if len({eps for _, eps in found}) > 1:
        raise OtherShape("its norms have different epsilons")
    (times, eps), (into, _), (by, _) = found
    return (
        times[:rank],
        into[:keys],
        by[:keys],
    ), eps  # those without weights of their own have ones, and more
