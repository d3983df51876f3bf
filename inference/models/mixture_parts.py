"""What a mixture of experts consists of, once it is recognised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inference.kernels.choosing import Choosing
from inference.models.linears import weight_and_bias


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
