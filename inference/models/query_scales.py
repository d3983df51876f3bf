"""What attention multiplies queries by that depends on their positions (Nakanishi 2025, arXiv:2501.19399).

Long texts would have every token be seen a little; so from a length on scores are made greater, step by
step. Short prompts come nowhere near: it is looked for at the last position that there can be, and its rule
among the numbers of the model's configuration, which have to explain what is seen at the borders of steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.models.joined import Linears
from inference.models.merged_qkv import watch_attention
from inference.models.other_shape import OtherShape

_NEAR = 2e-3  # of a number; of a rule all have to be so near, and its own are the configuration's
_STEPS = 3  # whose borders are looked at, beside the last


@dataclass(frozen=True, slots=True)
class _Rule:
    """1 + strength * log(1 + floor((position + ahead) / step))."""

    step: float
    strength: float
    ahead: int

    def scale(self, position: int) -> float:
        """Return what queries at a position are multiplied by."""
        return 1 + self.strength * math.log(1 + (position + self.ahead) // self.step)

    def scales(self, positions: Tensor) -> Tensor:
        """Return what queries at positions are multiplied by, in float32."""
        return 1 + self.strength * torch.log(1 + torch.floor((positions.float() + self.ahead) / self.step))


@torch.inference_mode()
def find_query_scales(
    model: PreTrainedModel, linears: Mapping[nn.Module, Linears], positions: int
) -> dict[nn.Module, Tensor]:
    """Return what attention modules multiply queries by at each position, (positions,) in float32.

    Those that don't are left out. Raises OtherShape if no rule explains what is seen. Nothing is changed.
    """
    if not linears or positions < 2:
        return {}
    watched = _watch(model, linears, [0, positions - 1])
    scaled = {each: linears[each] for each, ratios in watched.items() if not _near_ones(ratios)}
    if not scaled:
        return {}
    rules = _rules(model, positions, {float(watched[each][1]) for each in scaled})
    at = sorted({0, *(place for rule in rules for place in _borders(int(rule.step), positions))})
    watched = _watch(model, scaled, at)
    found = {each: _rule(rules, torch.tensor(at), ratios) for each, ratios in watched.items()}
    tables = {rule: rule.scales(torch.arange(positions)) for rule in set(found.values())}
    return {each: tables[rule] for each, rule in found.items()}


def _rules(model: PreTrainedModel, positions: int, seen: set[float]) -> list[_Rule]:
    """Return the rules of a configuration's numbers by which any of some scales is the last position's."""
    numbers = sorted(set(_numbers(model.config.to_dict())))
    steps = [each for each in numbers if 1 < each < positions]
    rules = (_Rule(*each) for each in product(steps, numbers, (0, 1)))
    return [rule for rule in rules if any(abs(rule.scale(positions - 1) - each) < _NEAR for each in seen)]


def _watch(
    model: PreTrainedModel, linears: Mapping[nn.Module, Linears], at: list[int]
) -> dict[nn.Module, Tensor]:
    """Return how great queries are at positions, as parts of the first; raise OtherShape if keys differ."""
    ones = {each: torch.ones(len(at), sum(linear.sizes)) for each, linear in linears.items()}
    found = {}
    for attention, seen in watch_attention(model, linears, ones, torch.tensor(at)).items():
        if seen.queries is None or seen.others is None:
            continue
        queries, others = (each.double().norm(dim=1) for each in (seen.queries, seen.others))
        if not _near_ones(others / others[0]):
            raise OtherShape("its keys are multiplied by what depends on their positions")
        found[attention] = queries / queries[0]
    return found


def _rule(rules: list[_Rule], at: Tensor, ratios: Tensor) -> _Rule:
    for rule in rules:
        if _near_ones(rule.scales(at) / rule.scales(at[:1]) / ratios):
            return rule
    raise OtherShape("its queries are multiplied by what depends on their positions, by an unknown rule")


def _near_ones(ratios: Tensor) -> bool:
    return bool(((ratios - 1).abs() < _NEAR).all())


def _borders(step: int, positions: int) -> Iterator[int]:
    """Yield positions around which a step begins, whether or not it counts from 1."""
    for number in (*range(1, _STEPS + 1), (positions - 1) // step):
        yield from (place for place in range(number * step - 2, number * step + 1) if 0 <= place < positions)


def _numbers(config: Any) -> Iterator[float]:
    """Yield all numbers of a configuration that are greater than 0."""
    if isinstance(config, dict):
        for value in config.values():
            yield from _numbers(value)
    elif isinstance(config, int | float) and not isinstance(config, bool) and config > 0:
        yield float(config)
