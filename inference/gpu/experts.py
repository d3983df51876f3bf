"""A mixture's experts on a device: sorted, multiplied and added up by `Ops`, in the model's own way between.

transformers has all experts of a layer in two tensors, which are read where they lie, and says of each class
how they lie there (`transformers.integrations.use_experts_implementation`). Nothing waits for the device, so
that a step can be captured, whatever the experts' dtype.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Several
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inference.gpu.expert_ways import ExpertLinear, ExpertMultiplier, something
from inference.gpu.linears import DeviceLinear, SwappedLinear
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.gpu.mlps import ACTIVATIONS
from inference.gpu.swaps import Places, Swapped, swap_modules
from inference.kernels.gating import Gating
from inference.models.gates import find_gating
from inference.models.quantised_experts import expert_codes
from inference.models.weights import expert_weights
from inference.quantised.blocks import Blocks
from inference.quantised.codes import Codes
from inference.shortage import is_shortage

LOG = logging.getLogger(__name__)

_TRIED, _CHOSEN = 32, 3  # tokens, and experts of each
_NEAR, _NEAR_NARROW = {torch.float32: 1e-5}, 2e-2  # as a part of what comes out; narrow: of 16 bits


class DeviceExperts(Swapped):
    """Stands for all experts of a layer."""

    def __init__(
        self, own: nn.Module, multiply: ExpertMultiplier, up: ExpertWeight, down: ExpertWeight
    ) -> None:
        super().__init__(own)
        self.multiply = multiply
        self.up = up  # with the gate, if there is one, in the model's own order
        self.down = down
        self.gate: Gating | None = None  # None: it is the model's own code
        # Of each token, and how they are said to count: as they were last
        self.chosen, self._scores_in = min(_CHOSEN, up.experts), up.dtype

    def forward(self, given: Tensor, *routing: Tensor, **named: Tensor) -> Tensor:
        """Return (..., hidden) of inputs (..., hidden).

        `routing`, or `named`: the experts of each token (tokens, chosen), and how much each of them counts.
        """
        index, scores = (each.reshape(-1, each.shape[-1]) for each in (*routing, *named.values()))
        self.chosen, self._scores_in = index.shape[1], scores.dtype
        found = self.multiply.linears.ops.route(index, self.up.experts)
        result = self.compute(given.reshape(-1, given.shape[-1]).to(self.up.dtype), found, scores)
        return result.view(given.shape).to(given.dtype)

    def compute(self, x: Tensor, routing: Routing, scores: Tensor) -> Tensor:
        """Return (tokens, hidden) of tokens (tokens, hidden) that go where they are routed."""
        own: Any = self.own
        inner = self.multiply(x, self.up, routing, True, self.gate)
        if self.gate is None:
            inner = own._apply_gate(inner) if own.has_gate else own.act_fn(inner)
        found = self.multiply(inner, self.down, routing, False, None)
        if getattr(own, "has_post_expert_norm", False):  # transformers 5.17 knows none
            found = own.post_expert_norm(found)
        return self.multiply.linears.ops.combine(found, routing, scores)

    def rehearse(self) -> None:
        """Launch what steps of any number of tokens do."""
        ops = self.multiply.linears.ops
        for tokens in (1, 2):
            x, index, scores = something(self.up, tokens, self.chosen)
            self(x, index, scores.to(self._scores_in))
        routing = ops.route(index, self.up.experts)
        for each in self.linears:
            for way in ops.expert_forms(self.chosen, each.weight):
                way.multiply(each.rows(routing), each.weight, routing, each.gathers, each.gate)

    @property
    def linears(self) -> tuple[ExpertLinear, ExpertLinear]:
        """Return both, in their order."""
        up = ExpertLinear(self.up, self.chosen, gathers=True, gate=self.gate)
        return up, ExpertLinear(self.down, self.chosen, gathers=False)

    def take_codes(self) -> None:
        """Have the model's own module hold no codes beside these."""
        own = expert_codes(self.own)
        own |= {name: [] for name in own}

    def restore(self) -> nn.Module:
        """Return the model's own module, its codes given back."""
        own = expert_codes(self.own)
        for name, weight in zip(list(own), (self.up, self.down), strict=False):
            assert isinstance(weight.numbers, Blocks), "it was made of codes"
            parts = weight.numbers.split([weight.outputs] * weight.experts)
            own[name] = [part.unpack() for part in parts]
        return self.own


def swap_experts(model: nn.Module, multiply: ExpertMultiplier, dtype: torch.dtype) -> Places:
    """Replace all experts whose numbers that gives, found by trying, and return their places.

    Torch's operations wait for a GPU where the model's own code needn't: there nothing is replaced.
    """
    device = next(model.parameters()).device
    if not multiply.linears.ops.captures and device.type != "cpu":
        return []
    return swap_modules(model, partial(_swapped, multiply, dtype))


def packed_experts(module: nn.Module) -> tuple[SwappedLinear, ...]:
    """Return what of a layer's experts is in few bits, as linears."""
    assert isinstance(module, DeviceExperts), "it was swapped"
    weights = [each.numbers for each in (module.up, module.down)]
    return tuple(
        SwappedLinear(DeviceLinear(module.multiply.linears, each, None))
        for each in weights
        if isinstance(each, Blocks)
    )


def _swapped(multiply: ExpertMultiplier, dtype: torch.dtype, module: nn.Module) -> DeviceExperts | None:
    """Return what stands for a module and gives its own numbers, if there is anything."""
    codes = expert_codes(module)
    names = list(codes or expert_weights(module))
    weights = [_weight(module, name, dtype, codes.get(name)) for name in names]
    found = [each for each in weights if each is not None]
    if len(found) != 2:
        return None
    experts = DeviceExperts(module, multiply, *found)
    if module.has_gate:
        gating = find_gating(module)
        if gating is not None and gating.activation in ACTIVATIONS:
            experts.gate = gating
    error = _apart(experts)
    if error <= _NEAR.get(dtype, _NEAR_NARROW):
        experts.take_codes()
        return experts
    LOG.debug("`%s` stays as it is: its numbers are %.1e off", type(module).__name__, error)
    return None


def _weight(
    module: nn.Module, name: str, dtype: torch.dtype, codes: Several[Codes] | None
) -> ExpertWeight | None:
    """Return one of a layer's two weights, where it lies, or in few bits; None if it is in another dtype."""
    bias = module._parameters.get(f"{name}_bias") if module.has_bias else None
    bias = None if bias is None else bias.detach().to(dtype).contiguous()
    if codes is not None:
        return ExpertWeight.of_codes(codes, dtype, bias)
    own: Any = module._parameters[name]  # as it is, not as the model's code reads it
    if own.dtype != dtype:
        return None
    numbers = own.detach().transpose(1, 2) if module.is_transposed else own.detach()
    return ExpertWeight(numbers, len(numbers), bias)


@torch.inference_mode()
def _apart(experts: DeviceExperts) -> float:
    """Return how far they are from their own module, by norm; infinitely if that takes something else."""
    given = something(experts.up, _TRIED, _CHOSEN)
    try:
        own, found = experts.own(*given).float(), experts(*given).float()
        return float((found - own).norm() / own.norm())
    except Exception as error:  # any model's code may want to be given something else
        if is_shortage(error):
            raise  # no other way needs less
        LOG.debug("`%s` stays as it is: %s", type(experts.own).__name__, error)
        return math.inf
