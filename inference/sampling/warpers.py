"""The stages between the model's logits and the filters, which look at all tokens of a row.

The order is TGI's: watermark, bias, repetition, frequency and presence penalty, grammar,
temperature, and then the filters: top-k, top-p, min-p, typical-p (`inference.sampling.candidates`). A stage
is computed for the rows that ask for it and skipped when none does; what a row gets never depends
on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference.sampling import penalties
from inference.sampling.filters import forbid, scale_temperature
from inference.sampling.penalties import Bias, History, column
from inference.types import Sampling

__all__ = ["History", "Mask", "warp"]

Mask = NDArray[np.uint32]  # a bit for each token that may come, the lowest first

_Stage = Callable[[Tensor, Several[Any], Several[History]], Tensor]  # of scores and the rows' values
_Row = tuple[Callable[[Sampling], Any], object, _Stage]  # a stage's value, the value that switches it off
_Work = tuple[list[int], _Stage, list[Any]]  # rows, what is done with them, and the value of each


def warp(
    logits: Tensor,
    samplings: Several[Sampling],
    histories: Several[History],
    masks: Several[Mask | None] | None = None,
    biases: Several[Bias | None] | None = None,
) -> Tensor:
    """Return the scores (n, v) that are left to filters and to the choice; `logits` (n, v) stays as it is.

    A row with a mask keeps the tokens that it allows; those beyond its end are not allowed. Without
    a stage that looks back at their texts, no rows need histories. `biases` are what the rows' samplings
    say, for who has kept them.
    """
    if biases is None:
        biases = [Bias.of(sampling.logit_bias) for sampling in samplings]
    scores = logits
    for rows, stage, values in _wanted(samplings, masks or (), biases):
        if len(rows) == len(logits):
            scores = stage(scores, values, histories)
            continue
        if scores is logits:
            scores = logits.clone()
        scores[rows] = stage(scores[rows], values, [histories[row] for row in rows if histories])
    return scores


def _wanted(
    samplings: Several[Sampling], masks: Several[Mask | None], biases: Several[Bias | None]
) -> Iterator[_Work]:
    yield from _asked_for(_BEFORE_BIAS, samplings)
    yield from _given(biases, penalties.logit_bias)
    yield from _asked_for(_BEFORE_GRAMMAR, samplings)
    yield from _given(masks, _grammar)
    yield from _asked_for(_AFTER_GRAMMAR, samplings)


def _given(values: Several[object | None], stage: _Stage) -> Iterator[_Work]:
    rows = {row: value for row, value in enumerate(values) if value is not None}
    if rows:
        yield list(rows), stage, list(rows.values())


def _asked_for(stages: Several[_Row], samplings: Several[Sampling]) -> Iterator[_Work]:
    for value_of, off, stage in stages:
        values = list(map(value_of, samplings))
        if values.count(off) < len(values):
            rows = [row for row, value in enumerate(values) if value != off]
            yield rows, stage, [values[row] for row in rows]


def _temperature(scores: Tensor, values: Several[float], histories: Several[History]) -> Tensor:
    return scale_temperature(scores, column(values, scores))


def _grammar(scores: Tensor, masks: Several[Mask], histories: Several[History]) -> Tensor:
    return forbid(scores, masks)


_BEFORE_BIAS: tuple[_Row, ...] = ((attrgetter("watermark"), None, penalties.watermark),)
_BEFORE_GRAMMAR: tuple[_Row, ...] = (
    (attrgetter("repetition_penalty"), 1.0, penalties.repetition),
    (attrgetter("frequency_penalty", "presence_penalty"), (0.0, 0.0), penalties.occurrence),
)
_AFTER_GRAMMAR: tuple[_Row, ...] = ((attrgetter("temperature"), 1.0, _temperature),)
