"""Filters and penalties in plain torch: what the kernels of kernels/gpu/shaping.py are measured by.

They do what the host does (`sampling/warpers.py`, `sampling/filters.py`), in its order and with its
arithmetic, and draw by the host's own noise: of the tokens that are left, the first by id whose
cumulative mass passes one uniform number. So a request gets the same tokens from either. Nothing
here waits for the device. Everywhere R is rows and V the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.gpu import noise
from inference.gpu.wishes import Wish, Wishes
from inference.sampling.penalties import penalise_occurrence
from inference.sampling.recipe import MOST_COUNTED

NOISE_BITS = 48  # of a key, its upper ones, as in inference/sampling/noise.py


def shape(logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
    """Choose anew in `drawn` (R, 2) for rows that wish it; see `Ops.shape`."""
    slots = wishes.slots.long()
    asked = wishes.table[slots]  # (R, wishes)
    wide = logits.float()
    wide = wide.where(wide < torch.inf, -torch.inf)  # rows that aren't finite stay as they are
    temperatures = wishes.temperatures[slots]
    scores = heat(_penalised(wide, wishes.marks[slots, : wide.shape[1]], asked), temperatures)
    best = scores.amax(1, keepdim=True).double()
    mass = (scores.double() - best).exp().where(kept(scores, asked), 0.0)
    totals = mass.cumsum(1)[:, -1:]
    positions = (wishes.lengths[slots] - wishes.ahead).long()
    picked = _draw(mass, uniforms(wishes.seeds[slots], positions)[:, None])
    first = noise.first_best(scores)[:, None]
    tokens = first.where((temperatures == 0)[:, None], picked)
    before = drawn[:, :1].long()
    own = wide.gather(1, tokens).double() - wide.gather(1, before).double() + drawn[:, 1:]
    left = scores.gather(1, tokens).double() - best - totals.log()
    logprobs = left.where(wishes.warped[slots][:, None], own)
    anew = (asked[:, Wish.SHAPED] > 0) & best[:, 0].isfinite() & ~drawn[:, 1].isnan()
    drawn.copy_(torch.cat([tokens.double(), logprobs], 1).where(anew[:, None], drawn))


def heat(scores: Tensor, temperatures: Tensor) -> Tensor:
    """Return scores (R, V) divided by temperatures (R,), their best moved to 0; 0 and 1: as they are."""
    cold = ((temperatures == 0) | (temperatures == 1))[:, None]
    tiny = torch.finfo(scores.dtype).tiny
    divided = (scores - scores.amax(1, keepdim=True)) / temperatures.clamp(min=tiny)[:, None]
    return scores.where(cold, divided)


def kept(scores: Tensor, asked: Tensor) -> Tensor:
    """Return which tokens (R, V) the filters of rows (R, wishes) leave, as sampling/filters.py does."""
    ranked, ids = scores.sort(dim=1, descending=True, stable=True)  # equals in the order of their ids
    top_k = asked[:, Wish.TOP_K, None].long()
    last = ranked.gather(1, top_k.clamp(1, scores.shape[1]) - 1)
    left = (ranked > -torch.inf) & ((ranked >= last) | (top_k == 0))
    mass = (ranked.double() - ranked[:, :1].double()).exp().where(left, 0.0).cumsum(1)
    before = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], 1)
    left &= before < asked[:, Wish.TOP_P, None] * mass[:, -1:]
    left &= ranked >= ranked[:, :1] + asked[:, Wish.LEAST, None].float()
    return torch.zeros_like(left).scatter(1, ids, left)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return one number of [0, 1) for each seed and position (R,) int64, float64: the host's."""
    upper = noise.keys(seeds, positions) >> (64 - NOISE_BITS) & ((1 << NOISE_BITS) - 1)
    return upper.double() * 2.0**-NOISE_BITS


def _penalised(scores: Tensor, marks: Tensor, asked: Tensor) -> Tensor:
    """Return scores (R, V) after the penalties on tokens that are marked (R, V)."""
    repetition, frequency, presence = (
        asked[:, column].float() for column in (Wish.REPETITION, Wish.FREQUENCY, Wish.PRESENCE)
    )
    factor = repetition[:, None]
    weaker = torch.where(scores < 0, scores * factor, scores / factor)
    counts = (marks & MOST_COUNTED).float()
    penalised = penalise_occurrence(weaker.where(marks != 0, scores), counts, frequency, presence)
    return penalised.where(asked[:, Wish.PENALISED, None] > 0, scores)


def _draw(mass: Tensor, share: Tensor) -> Tensor:
    """Return the first token (R, 1) of rows (R, V) whose cumulative mass passes a share (R, 1) of it all."""
    edges = mass.cumsum(1)
    passed = (edges <= share * edges[:, -1:]).sum(1, keepdim=True)
    ids = torch.arange(mass.shape[1], device=mass.device)
    last = ids.where(mass > 0, 0).amax(1, keepdim=True)  # what has no mass is never drawn
    return torch.minimum(passed, last)
