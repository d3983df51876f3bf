"""Parallel linears merged into one, found by watching the model run.

Linears of one module that are called with the very same tensor (q, k and v; gate and up) become
one matrix product. No list of names or architectures is needed: one small forward shows which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inference.models.linears import make_linear
from inference.models.quantised import LINEARS, codes_of, make_quantised
from inference.quantised.codes import Codes, join


@dataclass(frozen=True, slots=True)
class Merge:
    """Linears of one module that were merged."""

    parent: nn.Module
    names: tuple[str, ...]

    def undo(self) -> None:
        """Put separate linears back; their weights are views into the merged one."""
        leader = getattr(self.parent, self.names[0])
        for name, linear in zip(self.names, leader.separate(), strict=True):
            setattr(self.parent, name, linear)


def merge_linears(model: nn.Module, run: Callable[[], object]) -> list[Merge]:
    """Merge what `run`, a forward of `model`, calls in parallel, and return what was merged.

    The merged linears compute the same sums, possibly in another order: the caller compares.
    """
    merges = _parallel_linears(model, run)
    for merge in merges:
        leader = _Leader([_linear(merge.parent, name) for name in merge.names])
        setattr(merge.parent, merge.names[0], leader)
        for index, name in enumerate(merge.names[1:], start=1):
            setattr(merge.parent, name, _Follower(leader.shared, index))
    return merges


def merged_linears(module: nn.Module) -> nn.Module | None:
    """Return what computes the only two linears of a module that were merged, if they are of one size."""
    leaders = [each for each in module.children() if isinstance(each, _Leader)]
    followers = [each for each in module.children() if isinstance(each, _Follower)]
    if len(leaders) != 1 or len(followers) != 1 or len(set(leaders[0].sizes)) != 1:
        return None
    return leaders[0].joint


def _parallel_linears(model: nn.Module, run: Callable[[], object]) -> list[Merge]:
    calls = _calls(model, run)
    times = Counter(path for path, _ in calls)
    groups: dict[tuple[str, int], list[str]] = {}
    for path, given in calls:
        parent, _, name = path.rpartition(".")
        if times[path] == 1:
            groups.setdefault((parent, id(given)), []).append(name)  # `calls` keeps it alive: ids are unique
    merges = [Merge(model.get_submodule(parent), tuple(names)) for (parent, _), names in groups.items()]
    return [merge for merge in merges if len(merge.names) > 1 and _alike(merge)]


def _calls(model: nn.Module, run: Callable[[], object]) -> list[tuple[str, Tensor]]:
    """Return each call of a linear during `run`: its path and what it was given."""
    calls: list[tuple[str, Tensor]] = []

    def watch(path: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        return module.register_forward_pre_hook(lambda _, given: calls.append((path, given[0])))

    # Subclasses compute something else (quantised, adapted): they stay as they are.
    plain = LINEARS
    handles = [watch(path, module) for path, module in model.named_modules() if type(module) in plain]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _alike(merge: Merge) -> bool:
    linears = [_linear(merge.parent, name) for name in merge.names]
    codes = [codes_of(each) for each in linears]
    if any(each is not None for each in codes) and join(codes) is None:
        return False
    kinds = {(each.in_features, each.bias is None, each.weight.dtype, each.weight.device) for each in linears}
    return len(kinds) == 1


def _linear(parent: nn.Module, name: str) -> nn.Linear:
    linear = parent.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return linear


class _Shared:
    """What the leader computed for the followers; no module, as those are slow to assign to."""

    __slots__ = ("given", "waiting")

    def __init__(self) -> None:
        self.given: Tensor | None = None
        self.waiting: dict[int, Tensor] = {}  # results by follower, until it is called

    def take(self, index: int, given: Tensor) -> Tensor:
        """Return what linear `index` makes of `given`, computed when the first one was called."""
        assert given is self.given, "parallel linears must be called with one tensor"
        result = self.waiting.pop(index)
        if not self.waiting:
            self.given = None  # or it would live until the next step
        return result


class _Leader(nn.Module):
    """Stands for the first of several linears and computes all of them."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.shared = _Shared()
        self.sizes = [linear.out_features for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias is not None]
        with torch.no_grad():
            bias, codes = torch.cat(biases) if biases else None, join([codes_of(each) for each in linears])
            if codes is None:
                self.joint = make_linear(torch.cat([linear.weight for linear in linears]), bias)
            else:
                self.joint = make_quantised(codes, bias, linears[0].weight.dtype)

    def forward(self, given: Tensor) -> Tensor:
        first, *rest = self.joint(given).split_with_sizes(self.sizes, -1)
        self.shared.given = given
        self.shared.waiting = dict(enumerate(rest, start=1))
        return first

    def separate(self) -> list[nn.Linear]:
        """Return the linears again."""
        bias, codes = self.joint.bias, codes_of(self.joint)
        biases = bias.split(self.sizes) if bias is not None else [None] * len(self.sizes)
        if codes is not None:
            dtype = self.joint.weight.dtype
            parts: list[Codes] = [*codes.split(self.sizes)]
            return [make_quantised(part, each, dtype) for part, each in zip(parts, biases, strict=True)]
        return [make_linear(*each) for each in zip(self.joint.weight.split(self.sizes), biases, strict=True)]


class _Follower(nn.Module):
    """Stands for one of the other linears."""

    def __init__(self, shared: _Shared, index: int) -> None:
        super().__init__()
        self._shared = shared
        self._index = index

    def forward(self, given: Tensor) -> Tensor:
        return self._shared.take(self._index, given)
