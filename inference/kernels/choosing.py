"""How a mixture's experts are chosen by what its router says, by torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scoring = Literal["softmax", "sigmoid", "sparsemixer"]
SCORINGS: tuple[Scoring, ...] = ("softmax", "sigmoid", "sparsemixer")  # in the order of mixture.h
MOST_GROUPS, MOST_BEST = 64, 2  # of mixture.h
_LITTLE = 1e-20  # of sigmoids, all may be 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """The chosen experts are those with the greatest scores; these, as they are or normalised, are weights.

    With groups, in which experts follow each other, some groups are kept first: by their best expert's
    score, or by the sum of their two best ones'.

    SparseMixer (Liu et al. 2024, arXiv:2409.12136) chooses two, one after the other: the best of what is
    left, by its share of a softmax over those alone that are hardly worse.
    """

    scoring: Scoring
    chosen: int
    normalises: bool = False  # weights are divided by their sum
    scale: float = 1.0  # and then multiplied by it
    groups: int = 1
    kept: int = 1
    best: int = 1  # a group's score is the sum of so many
    margin: float = 0.0  # SparseMixer's: how much worse, as a part of the greater of both numbers

    def fits(self, experts: int) -> bool:
        """Return whether so many experts can be chosen from."""
        if self.scoring == "sparsemixer":
            return self.chosen == 2 <= experts and self.groups == 1 and not self.normalises
        size, left = divmod(experts, self.groups)
        return (
            not left
            and 1 <= self.kept <= self.groups <= MOST_GROUPS
            and 1 <= self.best <= min(size, MOST_BEST)
            and 1 <= self.chosen <= self.kept * size
        )

    def __call__(self, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the experts of logits (tokens, experts), their numbers rising, and their weights.

        Both are (tokens, chosen). `correction` (experts,) is added to scores while experts are chosen, and
        is in no weight.
        """
        if self.scoring == "sparsemixer":
            return self._mixed(logits)
        scores = logits.softmax(-1) if self.scoring == "softmax" else logits.sigmoid()
        by = scores if correction is None else scores + correction
        if self.groups > 1:
            by = self._of_kept_groups(by)
        experts = by.topk(self.chosen, dim=-1).indices.sort(dim=-1).values
        weights = scores.gather(-1, experts)
        if self.normalises:
            weights = weights / (weights.sum(-1, keepdim=True) + _LITTLE)
        return experts, weights * self.scale

    def _mixed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        left, experts, weights = logits, [], []
        for _ in range(self.chosen):
            best, which = left.max(-1, keepdim=True)
            apart = (best - left) / torch.maximum(logits.abs(), best)
            shares = left.masked_fill(apart > self.margin, -torch.inf).softmax(-1)
            experts.append(which)
            weights.append(shares.gather(-1, which))
            left = left.scatter(-1, which, -torch.inf)
        order = torch.cat(experts, -1).sort(dim=-1)
        return order.values, torch.cat(weights, -1).gather(-1, order.indices) * self.scale

    def _of_kept_groups(self, by: Tensor) -> Tensor:
        grouped = by.unflatten(-1, (self.groups, -1))
        totals = grouped.topk(self.best, dim=-1).values.sum(-1)
        kept = torch.zeros_like(totals, dtype=torch.bool)
        kept.scatter_(-1, totals.topk(self.kept, dim=-1).indices, value=True)
        return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
