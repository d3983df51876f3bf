"""The likeliest tokens beside the chosen one: the n best, and some that are as likely as the n-th, as in TGI.

Not all of those: a penalty of 1e-9 makes all tokens alike that a text hasn't, and the whole vocabulary would
be said beside each token. Removed tokens never are among them.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch
from torch import Tensor

from inference.prompt_tops import COUNTS, IDS, PromptTops, TopTokens, rounded
from inference.sampling.candidates import Candidates
from inference.sampling.filters import Floats
from inference.sequences.state import Integers

MOST_TIED = 16  # tokens beyond those asked for; of equal ones the first by id


def of_rows(scores: Tensor, totals: Floats, wanted: Several[int]) -> list[TopTokens]:
    """Return `wanted` (n,) tokens of each row of scores (n, v), and at most MOST_TIED more.

    Their log-probabilities are what the scores exceed `totals` (n,) by.
    """
    most = min(max(wanted), scores.shape[1])
    if most == 0:
        return [()] * len(wanted)
    best, ids = _best(scores, most)
    top = []
    for row, n in enumerate(wanted):
        if 0 < n < best.shape[1] and best[row, n] == best[row, n - 1] > -np.inf:
            tied = _with_ties(scores[row], best[row, :n], ids[row, :n])
            top.append(_pairs(tied, scores[row, torch.from_numpy(tied)].double().cpu().numpy() - totals[row]))
        else:
            top.append(_pairs(ids[row, :n], best[row, :n] - totals[row]))
    return top


def of_prompt(scores: Tensor, totals: Floats, wanted: int) -> PromptTops:
    """Return the `wanted` best tokens of each row of scores (n, v), of equal ones the first by id.

    None beside them is as likely as the last: nobody is told it of a prompt.
    """
    n = min(wanted, scores.shape[1])
    best, ids = _best(scores, n)
    if n < best.shape[1]:
        for row in ((best[:, n] == best[:, n - 1]) & (best[:, n] > -np.inf)).nonzero()[0].tolist():
            ids[row, :n] = _with_ties(scores[row], best[row, :n], ids[row, :n])[:n]
    ids = ids[:, :n]
    logprobs = best[:, :n] - totals[:, None]
    possible = logprobs > -np.inf
    return PromptTops(
        possible.sum(1).astype(COUNTS).tobytes(),
        ids[possible].astype(IDS).tobytes(),
        rounded(logprobs[possible]),
    )


def of_candidates(candidates: Candidates, totals: Floats, wanted: Several[int]) -> list[TopTokens]:
    """Return the same of what filters have left."""
    top = []
    for ids, scores, total, n in zip(candidates.ids, candidates.scores, totals, wanted, strict=True):
        left = np.isfinite(scores)
        ids, scores = ids[left], scores[left]  # best first
        tied = int((scores >= scores[min(n, len(scores)) - 1]).sum()) if n and len(scores) else 0
        count = min(tied, n + MOST_TIED)
        top.append(_pairs(ids[:count], scores[:count] - total))
    return top


def _best(scores: Tensor, most: int) -> tuple[Floats, Integers]:
    """Return scores and ids of the `most` best tokens of each row, and of one more, which shows if it ties.

    Of equal ones the first by id comes first: torch has them in an order that depends on how many are asked
    for, and that other rows decide.
    """
    values, tokens = scores.topk(min(most + 1, scores.shape[1]), dim=1)
    best, ids = values.double().cpu().numpy(), tokens.cpu().numpy()
    order = np.lexsort((ids, -best), axis=1)
    return np.take_along_axis(best, order, 1), np.take_along_axis(ids, order, 1)


def _with_ties(scores: Tensor, values: Floats, ids: Integers) -> Integers:
    """Return `ids` of scores `values`, and with the last of them those that are its equals."""
    equal = (scores.double() == values[-1]).nonzero().flatten().cpu().numpy()
    return np.concatenate([ids[values > values[-1]], equal])[: len(ids) + MOST_TIED]


def _pairs(ids: Integers, logprobs: Floats) -> TopTokens:
    pairs = zip(ids.tolist(), logprobs.tolist(), strict=True)
    return tuple((token, logprob) for token, logprob in pairs if logprob > -np.inf)
