"""The stages between the model's logits and the choice of a token.

Their order is TGI's: repetition, frequency and presence penalty, temperature, top-k, top-p,
typical-p. A stage is computed for the rows that ask for it and skipped when none does; what a row
gets never depends on the rows beside it. Everywhere n is rows, v the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.types import Sampling

_WEAKEST = 1e-30  # what a smaller factor would do, this one does
_CANDIDATES = 1024  # tokens sorted at first by a filter of mass: nearly always enough


@dataclass(frozen=True, slots=True)
class History:
    """What a row's penalties look at."""

    ids: np.ndarray[tuple[int], np.dtype[np.int64]]  # prompt and generated, at least one
    prompt_length: int


def warp(logits: Tensor, samplings: Several[Sampling], histories: Several[History]) -> Tensor:
    """Return the scores (n, v) that the choice is made of; `logits` (n, v) stays as it is."""
    scores = logits
    for wanted, stage in _STAGES:
        rows = [row for row, sampling in enumerate(samplings) if wanted(sampling, logits.shape[1])]
        if not rows:
            continue
        if scores is logits:
            scores = logits.clone()
        picked = [samplings[row] for row in rows]
        if len(rows) == len(samplings):
            scores = stage(scores, picked, histories)
        else:
            scores[rows] = stage(scores[rows], picked, [histories[row] for row in rows])
    return scores


def penalise_repetition(scores: Tensor, ids: Tensor, penalty: Tensor) -> Tensor:
    """Divide (multiply, if negative) the score of each token in `ids` (n, m) by `penalty` (n,), once."""
    seen = scores.gather(1, ids)
    factor = penalty.clamp(_WEAKEST, 1 / _WEAKEST)[:, None]  # farther off, scores would overflow
    weaker = torch.where(seen < 0, seen * factor, seen / factor)
    return scores.scatter(1, ids, weaker)


def penalise_occurrence(scores: Tensor, counts: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Subtract OpenAI's penalties (n,) by how often each token was generated, `counts` (n, v)."""
    return scores - counts * frequency[:, None] - (counts > 0) * presence[:, None]


def scale_temperature(scores: Tensor, temperature: Tensor) -> Tensor:
    """Divide by `temperature` (n,), after moving the best score to 0 so that nothing overflows."""
    tiny = torch.finfo(scores.dtype).tiny
    return (scores - scores.amax(1, keepdim=True)) / temperature.clamp(min=tiny)[:, None]


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Remove what scores less than the k-th best, `k` (n,) within 1..v; ties with it stay."""
    best = scores.topk(int(k.max()), dim=1).values
    return scores.masked_fill(scores < best.gather(1, k[:, None] - 1), -torch.inf)


def keep_top_p(scores: Tensor, p: Tensor) -> Tensor:
    """Keep the smallest set of best tokens that has mass `p` (n,), at least one."""
    return _keep_mass(scores, scores, p)


def keep_typical_p(scores: Tensor, p: Tensor) -> Tensor:
    """Keep mass `p` (n,) of the tokens whose information is nearest to the entropy, at least one.

    Meister et al., "Locally typical sampling", 2022.
    """
    logprobs = scores.log_softmax(1)
    information = -logprobs
    entropy = (logprobs.exp() * information).nansum(1, keepdim=True)  # 0 * inf is no information
    return _keep_mass(scores, -(information - entropy).abs(), p)


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


# --- from the requests' parameters to the stages' tensors -----------------------------------


def _repetition(scores: Tensor, samplings: Several[Sampling], histories: Several[History]) -> Tensor:
    # Shorter rows are filled with a token of their own: it is penalised once, however often it is there.
    longest = max(len(history.ids) for history in histories)
    ids = np.empty((len(histories), longest), dtype=np.int64)
    for row, history in zip(ids, histories, strict=True):
        row[: len(history.ids)] = history.ids
        row[len(history.ids) :] = history.ids[-1]
    penalty = _column([sampling.repetition_penalty for sampling in samplings], scores)
    return penalise_repetition(scores, torch.from_numpy(ids).to(scores.device), penalty)


def _occurrence(scores: Tensor, samplings: Several[Sampling], histories: Several[History]) -> Tensor:
    generated = [history.ids[history.prompt_length :] for history in histories]
    rows = np.repeat(np.arange(len(generated)), [len(ids) for ids in generated])
    at = torch.from_numpy(rows * scores.shape[1] + np.concatenate(generated)).to(scores.device)
    counts = torch.zeros(scores.numel(), device=scores.device).index_add_(
        0, at, torch.ones(len(at), device=scores.device)
    )
    frequency = _column([sampling.frequency_penalty for sampling in samplings], scores)
    presence = _column([sampling.presence_penalty for sampling in samplings], scores)
    return penalise_occurrence(scores, counts.view_as(scores), frequency, presence)


def _temperature(scores: Tensor, samplings: Several[Sampling], _: Several[History]) -> Tensor:
    return scale_temperature(scores, _column([sampling.temperature for sampling in samplings], scores))


def _top_k(scores: Tensor, samplings: Several[Sampling], _: Several[History]) -> Tensor:
    return keep_top_k(scores, torch.tensor([sampling.top_k for sampling in samplings], device=scores.device))


def _top_p(scores: Tensor, samplings: Several[Sampling], _: Several[History]) -> Tensor:
    return keep_top_p(scores, _column([sampling.top_p for sampling in samplings], scores))


def _typical_p(scores: Tensor, samplings: Several[Sampling], _: Several[History]) -> Tensor:
    return keep_typical_p(scores, _column([sampling.typical_p for sampling in samplings], scores))


def _column(values: Several[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


_Wanted = Callable[[Sampling, int], bool]
_Stage = Callable[[Tensor, Several[Sampling], Several[History]], Tensor]

_STAGES: tuple[tuple[_Wanted, _Stage], ...] = (
    (lambda sampling, _: sampling.repetition_penalty != 1.0, _repetition),
    (lambda sampling, _: sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0, _occurrence),
    (lambda sampling, _: sampling.temperature != 1.0, _temperature),
    (lambda sampling, vocabulary: 0 < sampling.top_k < vocabulary, _top_k),
    (lambda sampling, _: sampling.top_p < 1.0, _top_p),
    (lambda sampling, _: sampling.typical_p < 1.0, _typical_p),
)
