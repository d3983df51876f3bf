"""MLPs of a model's own code whose gate is computed with its linears: for few rows in one kernel."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from inference.gpu.linears import DeviceLinear, SwappedLinear
from inference.gpu.swaps import Places, Swapped, swap_modules
from inference.models.fuse import merged_linears
from inference.shortage import is_shortage

LOG = logging.getLogger(__name__)

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
_TRIED, _FAR = 64, 64.0  # rows, and how far away others are: some models limit what comes there
_NEAR, _NEAR_NARROW = {torch.float32: 1e-5}, 2e-2  # as a part of what comes out; narrow: of 16 bits


class SwappedMlp(Swapped):
    """Stands for a module that is down(activation(gate(x)) * up(x))."""

    def __init__(self, own: nn.Module, joint: DeviceLinear, down: nn.Module, activation: str) -> None:
        super().__init__(own)
        self.joint = joint
        self.activation = activation
        self._down = [down]  # it is the own module's, and no second one

    def forward(self, given: Tensor) -> Tensor:
        """Return the same shape."""
        rows = given.reshape(-1, given.shape[-1])
        result: Tensor = self._down[0](self.joint.gated(rows, self.activation))
        return result.view(given.shape)


def swap_mlps(model: nn.Module) -> Places:
    """Replace all such modules whose first linears are merged, found by trying, and return their places."""
    return swap_modules(model, _swapped)


def _swapped(module: nn.Module) -> SwappedMlp | None:
    """Return what stands for a module and gives its own numbers, if there is anything."""
    merged, children = merged_linears(module), module.children()
    down = [each for each in children if isinstance(each, SwappedLinear)]
    if not isinstance(merged, SwappedLinear) or len(down) != 1:
        return None
    if any(isinstance(each, nn.Linear) for each in module.modules()):  # it does more than that
        return None
    tried = (SwappedMlp(module, merged.linear, down[0], each) for each in ACTIVATIONS)
    error, best = min(((_apart(each), each) for each in tried), key=lambda found: found[0])
    return best if error <= _NEAR.get(merged.linear.weight.dtype, _NEAR_NARROW) else None


@torch.inference_mode()
def _apart(swapped: SwappedMlp) -> float:
    """Return how far it is from its own module, by norm: infinitely from one that takes something else."""
    weight = swapped.joint.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    shape = (1, _TRIED, weight.shape[1])
    tried = torch.randn(shape, generator=generator, device=weight.device, dtype=weight.dtype)
    try:
        pairs = ((swapped.own(given), swapped(given)) for given in (tried, tried * _FAR))
        return max(float((found - own).norm() / own.norm()) for own, found in pairs)
    except Exception as error:  # any module may want to be given something else than one tensor
        if is_shortage(error):
            raise  # no other way needs less
        LOG.debug("`%s` stays as it is: %s", type(swapped.own).__name__, error)
        return math.inf
