"""What sharpens the distribution or removes tokens from it: temperature, filters, grammar masks.

Everywhere n is rows, v the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CANDIDATES = 1024  # tokens sorted at first by a filter of mass: nearly always enough
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BARRIERS = np.where(_BITS, np.float32(0), np.float32(-np.inf))  # (256, 8): what a byte of a mask adds


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


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Remove what scores less than the k-th best, `k` (n,) from 1 on; ties with it stay."""
    short = k < scores.shape[1]
    if not bool(short.any()):
        return scores
    best = scores.topk(int(k[short].max()), dim=1).values
    last = best.gather(1, k.clamp(max=best.shape[1])[:, None] - 1)
    return scores.masked_fill((scores < last) & short[:, None], -torch.inf)


def keep_top_p(scores: Tensor, p: Tensor) -> Tensor:
    """Keep the smallest set of best tokens that has mass `p` (n,), at least one."""
    return _keep_mass(scores, scores, p)


def keep_min_p(scores: Tensor, p: Tensor) -> Tensor:
    """Keep the tokens that are at least `p` (n,), of (0, 1], times as likely as the best.

    Nguyen et al., "Turning up the heat: min-p sampling", 2024.
    """
    least = scores.amax(1, keepdim=True) + p.log()[:, None]
    return scores.masked_fill(scores < least, -torch.inf)


def keep_typical_p(scores: Tensor, p: Tensor) -> Tensor:
    """Keep mass `p` (n,) of the tokens whose information is nearest to the entropy, at least one.

    Meister et al., "Locally typical sampling", 2022.
    """
    logprobs = scores.log_softmax(1)
    information = -logprobs
    entropy = (logprobs.exp() * information).nansum(1, keepdim=True)  # 0 * inf is no information
    return _keep_mass(scores, -(information - entropy).abs(), p)


def _barriers(packed: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return 0 for each bit of `packed` (n, m) that is set, else minus infinity, as (n, m, 8)."""
    if device.type == "cpu":  # numpy looks up whole rows faster than torch
        return torch.from_numpy(_BARRIERS.take(packed, axis=0))
    return torch.from_numpy(_BARRIERS).to(device)[torch.from_numpy(packed).to(device).long()]


def _keep_mass(scores: Tensor, key: Tensor, p: Tensor) -> Tensor:
    """Keep the tokens of highest `key` (n, v) up to mass `p` (n,); sort few, and more where needed."""
    probabilities = scores.softmax(1)
    kept, enough = _keep_mass_among(min(_CANDIDATES, scores.shape[1]), scores, probabilities, key, p)
    if not bool(enough.all()):
        short = (~enough).nonzero().flatten()
        rows = (each[short] for each in (scores, probabilities, key, p))
        kept[short] = _keep_mass_among(scores.shape[1], *rows)[0]
    return kept


def _keep_mass_among(
    count: int, scores: Tensor, probabilities: Tensor, key: Tensor, p: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the scores kept among the `count` tokens of highest key, and the rows they suffice for."""
    order = key.topk(count, dim=1).indices  # descending
    mass = probabilities.gather(1, order).cumsum(1)
    before = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], 1)
    candidates = scores.gather(1, order).masked_fill(before >= p[:, None], -torch.inf)
    kept = torch.full_like(scores, -torch.inf).scatter(1, order, candidates)
    return kept, (mass[:, -1] >= p) | (count == scores.shape[1])
