"""LoRA adapters on a device: the low ranks of all of them as two products, and a mask between.

y = linear(x) + up(mask * down(x)): `down` has the rows of all adapters, `up` their columns, and the mask
leaves each token those of its own adapter. Shapes don't depend on who is computed with which, so that a
step of decodes can be captured (the design of Punica's stacked adapters, Chen et al. 2023, without its
kernels: ranks are few).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inference.gpu.linears import DeviceLinear, Multiplier, device_linear
from inference.kernels.native_adapters import LowRank
from inference.models.lora import Adapters
from inference.models.numberless import Numberless


@dataclass(frozen=True, slots=True, eq=False)
class StackedLowRanks:
    """What all adapters add to one linear."""

    down: DeviceLinear  # (R, K): of all ranks, one adapter's after another's
    up: DeviceLinear  # (N, R)
    owners: Tensor  # (R,) int32: whose rank it is

    def add(self, y: Tensor, x: Tensor, adapters: Tensor) -> Tensor:
        """Return y (T, N) and what is added to it by x (T, K) and each token's adapter (T,), -1: none."""
        low = self.down(x)
        return y + self.up(torch.where(self.owners == adapters[:, None], low, 0))


def stack_low_ranks(
    several: Sequence[Sequence[LowRank]], size: int, multiply: Multiplier, like: Tensor
) -> StackedLowRanks | None:
    """Return what adapters add to a linear of `size` outputs, with the dtype and device of `like`.

    None if that is nothing.
    """
    downs, ups, owners = [], [], []
    for adapter, low_ranks in enumerate(several):
        for low in low_ranks:
            up = torch.zeros(size, low.up.shape[1])
            up[low.first : low.first + len(low.up)] = low.up.float() * low.scale
            downs.append(low.down.float())
            ups.append(up)
            owners += [adapter] * len(low.down)
    if not owners:
        return None
    down, up = (torch.cat(each, at).to(like.device) for at, each in enumerate((downs, ups)))
    return StackedLowRanks(
        device_linear(multiply, like.dtype, down, None),
        device_linear(multiply, like.dtype, up, None),
        torch.tensor(owners, dtype=torch.int32, device=like.device),
    )


class DeviceAdapting:
    """What a model's own code is told of a step: each token's adapter."""

    def __init__(self) -> None:
        self.adapters: Tensor | None = None  # (T,) int32, -1: none; set before a forward pass

    def wrap(self, model: nn.Module, adapters: Adapters, multiply: Multiplier, like: Tensor) -> None:
        """Have the model's linears add what the adapters do."""
        for path in adapters.paths:
            parent, _, name = path.rpartition(".")
            owner = model.get_submodule(parent)
            several = [[] if low is None else [low] for low in adapters.of(path)]
            size = next(len(low.up) for low in adapters.of(path) if low is not None)
            stacked = stack_low_ranks(several, size, multiply, like)
            assert stacked is not None, "some adapter adds to it"
            setattr(owner, name, DeviceAdaptedLinear(owner.get_submodule(name), stacked, self))


class DeviceAdaptedLinear(nn.Module):
    """A linear, whatever computes it, and what adapters add to it."""

    def __init__(self, own: nn.Module, stacked: StackedLowRanks, step: DeviceAdapting) -> None:
        super().__init__()
        self.own = own
        self._stacked = stacked
        self._step = step

    @property
    def weight(self) -> Tensor:
        """Return one without numbers, of which some models' code asks the dtype: by it nothing is added."""
        weight: Tensor = self.own.weight
        return Numberless.of(weight.shape, weight.dtype)

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., n) of (..., k), whose rows are the step's tokens."""
        found: Tensor = self.own(given)
        if self._step.adapters is None:
            return found
        rows = given.reshape(-1, given.shape[-1])
        added = self._stacked.add(found.reshape(len(rows), -1), rows, self._step.adapters)
        return added.view(found.shape)
