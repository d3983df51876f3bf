"""What sharpens the distribution or removes tokens from it: temperature, grammar masks, filters.

Everywhere n is rows, v the vocabulary. Filters don't look at whole rows but at m candidates of
each, best first, as float64 scores; minus infinity stands for a token that was removed.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BARRIERS = np.where(_BITS, np.float32(0), np.float32(-np.inf))  # (256, 8): what a byte of a mask adds

Floats = NDArray[np.float64]


def forbid(scores: Tensor, masks: Several[NDArray[np.uint32]]) -> Tensor:
    """Keep the tokens whose bit is set, the lowest bit first; those beyond a mask's end are removed.

    A table turns each byte of a mask into eight numbers to add: 40 us for a row of 152,000 on one
    CPU core, where filling by booleans takes torch up to 700 us.
    """
    vocabulary = scores.shape[1]
    packed = np.zeros((len(masks), -(-vocabulary // 8)), dtype=np.uint8)
    for row, mask in zip(packed, masks, strict=True):
        given = mask.view(np.uint8)[: len(row)]
        row[: len(given)] = given
    return scores + _barriers(packed, scores.device).view(len(masks), -1)[:, :vocabulary]


def scale_temperature(scores: Tensor, temperature: Tensor) -> Tensor:
    """Divide by `temperature` (n,), after moving the best score to 0 so that nothing overflows."""
    tiny = torch.finfo(scores.dtype).tiny
    return (scores - scores.amax(1, keepdim=True)) / temperature.clamp(min=tiny)[:, None]


def keep_top_k(scores: Floats, k: NDArray[np.int64]) -> Floats:
    """Remove what scores less than the k-th best, `k` (n,), 0: nothing; ties with it stay."""
    at = np.clip(k, 1, scores.shape[1])[:, None] - 1
    last = np.where(k[:, None], np.take_along_axis(scores, at, axis=1), -np.inf)
    return np.where(scores < last, -np.inf, scores)


def keep_top_p(scores: Floats, p: Floats, total: Floats) -> Floats:
    """Keep the smallest set of best tokens that has mass `p` (n,), at least one; infinite: all.

    `total` (n,) is the mass of everything, candidate or not, in units of the best one's.
    """
    mass = weights(scores).cumsum(1)
    before = np.concatenate([np.zeros((len(mass), 1)), mass[:, :-1]], axis=1)
    return np.where(before >= (p * total)[:, None], -np.inf, scores)


def keep_min_p(scores: Floats, p: Floats) -> Floats:
    """Keep the tokens that are at least `p` (n,), of [0, 1], times as likely as the best.

    Nguyen et al., "Turning up the heat: min-p sampling", 2024.
    """
    return np.where(scores < least_likely(scores, p)[:, None], -np.inf, scores)


def least_likely(scores: Floats, p: Floats) -> NDArray[np.float32]:
    """Return the score (n,) of a token that is `p` (n,) times as likely as the best one."""
    with np.errstate(divide="ignore", invalid="ignore"):  # no p is no bound; rows of infinities fail later
        # As exact as the scores are, or a token that is p times as likely would be removed
        return scores[:, 0].astype(np.float32) + np.log(p.astype(np.float32))


def keep_typical_p(scores: Floats, p: Floats) -> Floats:
    """Keep mass `p` (n,) of the tokens whose information is nearest to the entropy, at least one.

    Meister et al., "Locally typical sampling", 2022.
    """
    mass = weights(scores)
    probabilities = mass / mass.cumsum(1)[:, -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(probabilities)
        entropy = np.where(mass > 0, probabilities * information, 0.0).cumsum(1)[:, -1:]
        order = np.argsort(np.abs(information - entropy), axis=1, kind="stable")
    before = np.take_along_axis(probabilities, order, axis=1).cumsum(1)
    before = np.concatenate([np.zeros((len(before), 1)), before[:, :-1]], axis=1)
    removed = np.empty(scores.shape, dtype=np.bool_)
    np.put_along_axis(removed, order, before >= p[:, None], axis=1)
    return np.where(removed, -np.inf, scores)


def weights(scores: Floats) -> Floats:
    """Return how likely each token is in units of the best one, which is first."""
    with np.errstate(invalid="ignore"):  # rows with nothing but infinities: they fail later
        return np.exp(scores - scores[:, :1])


def _barriers(packed: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return 0 for each bit of `packed` (n, m) that is set, else minus infinity, as (n, m, 8)."""
    if device.type == "cpu":  # numpy looks up whole rows faster than torch
        return torch.from_numpy(_BARRIERS.take(packed, axis=0))
    return torch.from_numpy(_BARRIERS).to(device)[torch.from_numpy(packed).to(device).long()]
