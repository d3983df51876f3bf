"""Mixtures of experts, recognised by what they compute.

A mixture has all experts in one module, as transformers has them. A router multiplies each row by a weight,
and of what that says follows which experts the row is given to, and how much each counts: what is done in
between is found by trying. Some have an MLP beside the experts that all rows are given to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from inference.kernels.choosing import SCORINGS, Choosing
from inference.models.gates import find_gating
from inference.models.layers import MixtureParts, OtherShape
from inference.models.mlps import gated_mlp, read_mlp
from inference.models.quantised import LINEARS
from inference.models.quantised_experts import first_sizes, is_mixture

_ROWS = 256
_LOGITS = 2.0  # their standard deviation, while choices are tried
_SLIGHTLY = 1e-4  # of the greatest logit: rows whose choice hangs on less say nothing
_SURE = 0.8  # of the rows, of which the same experts are to be chosen in any case
_ONE = 1e-5  # so near to it a factor is 1
_NEAR = {"rtol": 1e-4, "atol": 1e-6}


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What a block did with rows, its experts giving something else instead of computing."""

    experts_given: Tensor  # (rows, hidden)
    experts: Tensor  # (rows, chosen), rising
    weights: Tensor  # the same
    beside: Tensor  # (rows, hidden): what it gave beside what its experts gave


@dataclass(frozen=True, slots=True, eq=False)
class _Router:
    """What may choose experts."""

    weight: Tensor  # (experts, hidden), as it is kept
    bias: Tensor | None  # (experts,)
    correction: Tensor | None  # (experts,)

    def logits(self, rows: Tensor) -> Tensor:
        """Return what it says of rows (rows, experts)."""
        return linear(rows, self.weight.float(), self.bias)


@torch.inference_mode()
def read_mixture(block: nn.Module) -> MixtureParts | None:
    """Return a mixture's parts; None: the block has no experts. Raises OtherShape. Nothing is changed."""
    experts = _experts(block)
    if experts is None:
        return None
    shared = _shared(block)
    inside = {id(each) for each in experts.modules()}
    outside = [each for each in block.modules() if id(each) not in inside]
    for router in _routers(outside, *_sizes(experts)):
        rows = _rows(router)
        seen = _see(block, experts, rows)
        choosing = _choosing(router, seen, rows, _numbers(outside), _fractions(outside))
        if choosing is None:
            continue
        gate = _gate(outside, shared, seen, rows)
        _refuse_others(block, outside, router, [*([] if shared is None else shared.modules()), gate])
        tensors = router.weight, router.bias, router.correction
        return MixtureParts(block, experts, *tensors, choosing, shared=shared, gate=gate)
    raise OtherShape(f"what chooses the experts of `{type(block).__name__}` isn't known")


def _experts(block: nn.Module) -> nn.Module | None:
    found = [each for each in block.modules() if is_mixture(each)]
    if not found:
        return None
    if len(found) > 1:
        raise OtherShape(f"`{type(block).__name__}` has {len(found)} modules of experts")
    experts: Any = found[0]
    if find_gating(experts) is None or getattr(experts, "has_post_expert_norm", False):
        raise OtherShape(f"what the experts of `{type(block).__name__}` compute isn't known")
    return found[0]


def _sizes(experts: nn.Module) -> tuple[int, int]:
    """Return how many experts there are, and what they read of a row."""
    count, _, inputs = first_sizes(experts)
    return count, inputs


def _shared(block: nn.Module) -> nn.Module | None:
    """Return the one MLP of a block that has one."""
    found = [each for each in block.modules() if _is_mlp(each)]
    if len(found) > 1:
        raise OtherShape(f"`{type(block).__name__}` has {len(found)} MLPs beside its experts")
    return found[0] if found else None


def _is_mlp(module: nn.Module) -> bool:
    for read in (gated_mlp, read_mlp):  # whose activation is unknown is an MLP all the same, if it has gates
        try:
            read(module)
        except OtherShape:
            continue
        return True
    return False


def _tensors(modules: list[nn.Module]) -> Iterator[Tensor]:
    """Yield parameters and buffers as they are, not as the model's code reads them."""
    for module in modules:
        yield from (each.detach() for each in module._parameters.values() if each is not None)
        yield from (each for each in module._buffers.values() if each is not None)


def _routers(outside: list[nn.Module], count: int, hidden: int) -> Iterator[_Router]:
    """Yield what may choose: of vectors that aren't zeros one is a bias, one a correction, none is left."""
    tensors = list(_tensors(outside))
    vectors = [each.float().flatten() for each in tensors if each.numel() == count and each.any()]
    if len(vectors) > 2:
        return
    missing: list[Tensor | None] = [None] * (2 - len(vectors))
    for weight in tensors:
        if weight.shape == (count, hidden) and weight.is_floating_point():
            for bias, correction in dict.fromkeys(permutations((*vectors, *missing))):
                yield _Router(weight, bias, correction)


def _rows(router: _Router) -> Tensor:
    """Return rows of which the router says things of a usual size."""
    rows = torch.randn((_ROWS, router.weight.shape[1]), generator=torch.Generator().manual_seed(0))
    spread = float(linear(rows, router.weight.float()).std())
    return rows * (_LOGITS / spread) if spread > 0 else rows


def _see(block: nn.Module, experts: nn.Module, rows: Tensor) -> _Seen:
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    given = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    complaint = OtherShape(f"`{type(block).__name__}` doesn't give each row to its experts once")

    def instead(x: Tensor, *routing: Tensor, **named: Tensor) -> Tensor:
        index, weights = (*routing, *named.values())
        if x.numel() != rows.numel() or index.shape != weights.shape or index.dim() != 2:
            raise complaint
        calls.append((x, index, weights))
        return given.view(x.shape)

    with _computed_by(experts, instead):
        result = block(rows[None])
    result = result[0] if isinstance(result, tuple) else result
    if len(calls) != 1 or result.numel() != rows.numel() or len(calls[0][1]) != len(rows):
        raise complaint
    x, index, weights = calls[0]
    index, order = index.sort(dim=-1)
    beside = result.reshape(rows.shape) - given
    return _Seen(x.reshape(rows.shape), index, weights.float().gather(-1, order), beside)


@contextmanager
def _computed_by(experts: nn.Module, function: Any) -> Iterator[None]:
    """Have a function be called instead of experts."""
    own = vars(experts).get("forward")
    experts.__dict__["forward"] = function
    try:
        yield
    finally:
        del experts.__dict__["forward"]
        if own is not None:
            experts.__dict__["forward"] = own


def _numbers(outside: list[nn.Module]) -> list[int]:
    """Return the numbers that the block's modules keep: one may say how many groups of experts there are."""
    kept = {each for module in outside for each in vars(module).values() if type(each) is int}
    return sorted(each for each in kept if each > 0)


def _fractions(outside: list[nn.Module]) -> list[float]:
    """Return the fractions that the block's modules keep."""
    kept = {each for module in outside for each in vars(module).values() if type(each) is float}
    return sorted(each for each in kept if 0 < each < 1)


def _choosing(
    router: _Router, seen: _Seen, rows: Tensor, numbers: list[int], fractions: list[float]
) -> Choosing | None:
    """Return how the router's logits chose the experts that were seen, and their weights."""
    if not torch.equal(seen.experts_given, rows):
        return None
    logits = router.logits(rows)
    choices = _choices(seen.experts.shape[1], logits.shape[1], numbers)
    sparse = _sparse_choices(seen, fractions) if router.correction is None else ()
    for choosing in (*choices, *sparse):
        experts, weights = choosing(logits, router.correction)
        same = (experts == seen.experts).all(-1)
        if same.float().mean() < _SURE or (_sure(choosing, router, logits) & ~same).any():
            continue
        ratio = float(seen.weights[same].double().sum() / weights[same].double().sum())
        if torch.allclose(weights[same] * ratio, seen.weights[same], **_NEAR):
            return choosing if abs(ratio - 1) < _ONE else replace(choosing, scale=ratio)
    return None


def _choices(chosen: int, experts: int, numbers: list[int]) -> Iterator[Choosing]:
    """Yield the ways to choose, those without groups first."""
    groups = [(1, 1, 1)]
    several = [each for each in numbers if each > 1]
    groups += [(n, kept, best) for n in several for kept in numbers if kept < n for best in (2, 1)]
    for count, kept, best in groups:
        for scoring in SCORINGS[:2]:
            for normalises in (True, False):
                made = Choosing(
                    scoring=scoring, chosen=chosen, normalises=normalises, groups=count, kept=kept, best=best
                )
                if made.fits(experts):
                    yield made


def _sparse_choices(seen: _Seen, fractions: list[float]) -> Iterator[Choosing]:
    """Yield what SparseMixer may do, if its margin shows: weights are 1 where nothing is near the best."""
    if seen.experts.shape[1] == 2 and (seen.weights < 1 - _ONE).any():
        yield from (Choosing(scoring="sparsemixer", chosen=2, margin=2 * each) for each in fractions)


def _sure(choosing: Choosing, router: _Router, logits: Tensor) -> Tensor:
    """Return of which rows the choice doesn't hang on how sums are rounded."""
    generator = torch.Generator().manual_seed(2)
    expected, _ = choosing(logits, router.correction)
    sure = torch.ones(len(logits), dtype=torch.bool)
    for _ in range(4):
        moved = logits + torch.randn(logits.shape, generator=generator) * _SLIGHTLY * logits.abs().max()
        sure &= (choosing(moved, router.correction)[0] == expected).all(-1)
    return sure


def _gate(outside: list[nn.Module], shared: nn.Module | None, seen: _Seen, rows: Tensor) -> nn.Module | None:
    """Return the linear whose sigmoid what is shared is multiplied by; None: there is none."""
    if shared is None:
        if seen.beside.any():
            raise OtherShape("something is added to what its experts give")
        return None
    given = shared(rows)
    if _is_near(given, seen.beside):
        return None
    for module in outside:
        fits = type(module) in LINEARS and (module.out_features, module.in_features) == (1, rows.shape[1])
        if fits and _is_near(given * module(rows).sigmoid(), seen.beside):
            return module
    raise OtherShape("what is added to what its experts give is no MLP of its input")


def _is_near(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


def _refuse_others(
    block: nn.Module, outside: list[nn.Module], router: _Router, known: list[nn.Module | None]
) -> None:
    """Raise OtherShape if a block has parameters that no part of it accounts for."""
    modules = [each for each in outside if not any(each is other for other in known)]
    for parameter in _tensors(modules):
        vector = parameter.numel() == len(router.weight)  # it has its part, or is zeros
        if not vector and parameter.data_ptr() != router.weight.data_ptr() and parameter.numel() > 1:
            raise OtherShape(f"`{type(block).__name__}` has weights whose part in it isn't known")
