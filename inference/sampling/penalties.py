"""What moves the scores of single tokens: watermark, bias and penalties.

Everywhere n is rows, v the vocabulary. Each stage comes twice: as arithmetic on tensors, and, lower
down, as `warp` calls it, with the values that the rows' requests gave.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from inference.sampling.watermark import scatter, seeds, threshold
from inference.types import Watermark

_WEAKEST = 1e-30  # what a smaller factor would do, this one does


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """What is added to the scores of single tokens, in columns: made once for a text, it may be many."""

    ids: NDArray[np.int64]  # (m,), each once
    values: NDArray[np.float64]  # (m,)

    @classmethod
    def of(cls, pairs: Several[tuple[int, float]]) -> Bias | None:
        """Return (token id, bias) as columns; None if there are no pairs."""
        if not pairs:
            return None
        ids = np.fromiter((token for token, _ in pairs), np.int64, len(pairs))
        return cls(ids, np.fromiter((value for _, value in pairs), np.float64, len(pairs)))


@dataclass(frozen=True, slots=True)
class History:
    """What a row's penalties look at."""

    ids: NDArray[np.int64]  # prompt and generated, at least one
    prompt_length: int


def raise_green(scores: Tensor, seeds: Tensor, limits: Tensor, delta: Tensor) -> Tensor:
    """Add `delta` (n,) to the tokens whose hash with `seeds` (n,) is below `limits` (n,), all int32."""
    tokens = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    green = scatter(seeds[:, None], tokens) < limits[:, None]
    return scores + delta[:, None] * green


def add_bias(scores: Tensor, rows: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    """Add each `bias` (m,) to the score of its token, given by `rows` (m,) and `ids` (m,)."""
    return scores.index_put((rows, ids), bias, accumulate=True)


def penalise_repetition(scores: Tensor, ids: Tensor, penalty: Tensor) -> Tensor:
    """Divide (multiply, if negative) the score of each token in `ids` (n, m) by `penalty` (n,), once."""
    seen = scores.gather(1, ids)
    factor = penalty.clamp(_WEAKEST, 1 / _WEAKEST)[:, None]  # farther off, scores would overflow
    weaker = torch.where(seen < 0, seen * factor, seen / factor)
    return scores.scatter(1, ids, weaker)


def penalise_occurrence(scores: Tensor, counts: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Subtract OpenAI's penalties (n,) by how often each token was generated, `counts` (n, v)."""
    return scores - counts * frequency[:, None] - (counts > 0) * presence[:, None]


def column(values: Several[float], like: Tensor) -> Tensor:
    """Return values as a tensor of the same kind."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)


# --- from the requests' parameters to the stages' tensors -----------------------------------


def watermark(scores: Tensor, marks: Several[Watermark], histories: Several[History]) -> Tensor:
    """Raise the green tokens of each row, as its last token decides them."""
    before = np.array([history.ids[-1] for history in histories])
    limits = np.array([threshold(mark.gamma) for mark in marks], dtype=np.int32)
    return raise_green(
        scores,
        torch.from_numpy(seeds(before)).to(scores.device),
        torch.from_numpy(limits).to(scores.device),
        column([mark.delta for mark in marks], scores),
    )


def logit_bias(scores: Tensor, biases: Several[Bias], _: Several[History]) -> Tensor:
    """Add each row's bias; a token that the model can't generate has no score to add to."""
    rows = np.repeat(np.arange(len(biases)), [len(bias.ids) for bias in biases])
    ids = np.concatenate([bias.ids for bias in biases])
    values = np.concatenate([bias.values for bias in biases])
    known = ids < scores.shape[1]
    return add_bias(
        scores,
        torch.from_numpy(rows[known]).to(scores.device),
        torch.from_numpy(ids[known]).to(scores.device),
        torch.from_numpy(values[known]).to(scores.device, scores.dtype),
    )


def repetition(scores: Tensor, penalties: Several[float], histories: Several[History]) -> Tensor:
    """Weaken each token of a row's prompt and text once; one that the model can't generate has no score."""
    # Shorter rows are filled with a token of their own: it is penalised once, however often it is there.
    longest = max(len(history.ids) for history in histories)
    ids = np.empty((len(histories), longest), dtype=np.int64)
    for row, history in zip(ids, histories, strict=True):
        row[: len(history.ids)] = history.ids
        row[len(history.ids) :] = history.ids[-1]
    width = scores.shape[1]
    if ids.max() >= width:  # marks of images in prompts: they have an embedding, and no logit
        scores, ids = pad(scores, (0, 1)), ids.clip(max=width)
    factors = column(penalties, scores)
    return penalise_repetition(scores, torch.from_numpy(ids).to(scores.device), factors)[:, :width]


def occurrence(
    scores: Tensor, penalties: Several[tuple[float, float]], histories: Several[History]
) -> Tensor:
    """Weaken each token of a row's text by its (frequency, presence) penalties."""
    generated = [history.ids[history.prompt_length :] for history in histories]
    rows = np.repeat(np.arange(len(generated)), [len(ids) for ids in generated])
    at = torch.from_numpy(rows * scores.shape[1] + np.concatenate(generated)).to(scores.device)
    counts = torch.zeros(scores.numel(), device=scores.device).index_add_(
        0, at, torch.ones(len(at), device=scores.device)
    )
    frequency, presence = zip(*penalties, strict=True)
    return penalise_occurrence(
        scores, counts.view_as(scores), column(frequency, scores), column(presence, scores)
    )
