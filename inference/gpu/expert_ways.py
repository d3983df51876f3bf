"""Linears of a mixture's experts on a device, and which way of computing each is the fastest, as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inference.gpu.compiling import compile_together
from inference.gpu.linears import FEW, MANY, Multiplier, Seconds, fastest
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.gpu.ops import ExpertWay, MultiplyExperts
from inference.kernels.gating import Gating

Form = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLinear:
    """One of a layer's two."""

    weight: ExpertWeight
    chosen: int  # experts of each token
    gathers: bool  # tokens; else it is given pairs
    gate: Gating | None = None  # behind it

    def rows(self, routing: Routing) -> Tensor:
        """Return something to be multiplied."""
        rows = len(routing.index) if self.gathers else routing.pairs
        weight = self.weight
        # Drawn on the host, as a linear's are: a capture that failed leaves the device's generator unusable
        return torch.randn(rows, weight.inputs).to(weight.device, weight.dtype)


class ExpertMultiplier:
    """Computes them, each shape in the way that was chosen for it, the operations' own until then."""

    def __init__(self, multiply: Multiplier) -> None:
        self.linears = multiply  # which computes all others, by the same operations
        self._chosen: dict[tuple[int, Form], ExpertWay] = {}  # by tokens, and the weight's form
        self._names: Counter[str] = Counter()
        self._late = 0  # ways that there was no time to measure

    def __call__(
        self, x: Tensor, weight: ExpertWeight, routing: Routing, gathers: bool, gate: Gating | None
    ) -> Tensor:
        """Return (pairs, n) in the routing's order, or half of it with a gate, as `Ops` does."""
        way = self._chosen.get((len(routing.index), weight.form)) if self._chosen else None
        multiply = self.linears.ops.expert_linear if way is None else way.multiply
        return multiply(x, weight, routing, gathers, gate)

    def tune(
        self,
        linears: Several[ExpertLinear],
        sizes: Several[int],
        seconds: Seconds,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Choose by measuring, until it is `over`, how they are computed in steps of so many tokens.

        Of more than a few tokens the powers of two are measured, which speak for those below them.
        """
        speaking: dict[int, list[int]] = {}
        for size in sorted({size for size in sizes if size <= MANY}):
            speaking.setdefault(size if size <= FEW else 1 << (size - 1).bit_length(), []).append(size)
        compile_together(self.linears.ops, partial(self._try_all, linears, list(speaking)))
        for measured, several in speaking.items():
            for form, way in self._choose(linears, measured, seconds, over):
                self._names[way.name] += 1
                self._chosen |= {(size, form): way for size in several}

    def _choose(
        self, linears: Several[ExpertLinear], tokens: int, seconds: Seconds, over: Callable[[], bool]
    ) -> Iterator[tuple[Form, ExpertWay]]:
        ops = self.linears.ops
        for same in _alike(linears):
            first = same[0]
            ways = []
            for way in ops.expert_ways(tokens, first.chosen, first.weight):
                if over():
                    self._late += 1
                else:
                    ways.append(way)
            if ways:
                routing = self._route(first, tokens)
                own = partial(_multiply, ops.expert_linear, routing)
                calls = ((way, partial(_multiply, way.multiply, routing)) for way in ways)
                best = fastest(own, calls, same, first.rows(routing), seconds)
                if best is not None:
                    yield first.weight.form, best

    def _try_all(self, linears: Several[ExpertLinear], sizes: Several[int]) -> None:
        for tokens in sizes:
            for first, *_ in _alike(linears):
                routing = self._route(first, tokens)
                for way in self.linears.ops.expert_ways(tokens, first.chosen, first.weight):
                    way.multiply(first.rows(routing), first.weight, routing, first.gathers, first.gate)

    def _route(self, linear: ExpertLinear, tokens: int) -> Routing:
        _, index, _ = something(linear.weight, tokens, linear.chosen)
        return self.linears.ops.route(index, linear.weight.experts)

    def __str__(self) -> str:
        """Return what was chosen, and what was left unmeasured, as a line for a person, or ""."""
        chosen = [f"{count} by {name}" for name, count in self._names.most_common()]
        if not chosen and not self._late:
            return ""
        late = f"; there was no time to measure {self._late} ways" if self._late else ""
        return f"Shapes of experts: {', '.join([*chosen, 'others as ever'])}{late}"


def something(weight: ExpertWeight, tokens: int, chosen: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (tokens, k), different experts (tokens, chosen), and how much each of them counts."""
    generator = torch.Generator().manual_seed(0)  # on the host, as rows are
    x = torch.randn(tokens, weight.inputs, generator=generator)
    chances = torch.rand(tokens, weight.experts, generator=generator)
    index = chances.topk(min(chosen, weight.experts)).indices
    scores = torch.rand(index.shape, generator=generator)
    device, dtype = weight.device, weight.dtype
    return x.to(device, dtype), index.to(device), scores.to(device, dtype)


def _alike(linears: Several[ExpertLinear]) -> list[list[ExpertLinear]]:
    """Return those of one form together: one after the other is measured, as a step computes them."""
    alike: dict[tuple[Form, int, bool, Gating | None], list[ExpertLinear]] = {}
    for each in linears:
        alike.setdefault((each.weight.form, each.chosen, each.gathers, each.gate), []).append(each)
    return list(alike.values())


def _multiply(multiply: MultiplyExperts, routing: Routing, x: Tensor, linear: ExpertLinear) -> Tensor:
    return multiply(x, linear.weight, routing, linear.gathers, linear.gate)
