"""What is asked of whole rows of scores: the best token, the mass, a draw.

What a row gets depends on that row alone, to the last bit. torch's sums don't: a row that is alone
is split among threads. So long sums are made here of blocks, whose own sums no thread divides.
Everywhere n is rows, v the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.kernels.native import Library
from inference.kernels.native_rows import row_statistics
from inference.sampling.filters import Floats
from inference.sequences.state import Integers

_BLOCK = 64
_LINE = 8  # numbers of 16 bits or more: what 16 bytes hold, or twice that


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of each row the best token, the lowest id among equals, its score, and the logarithm of the mass."""

    tokens: Integers  # (n,)
    best: Floats  # (n,); not a number if anything in the row isn't
    totals: Floats  # (n,)

    def of(self, rows: Integers) -> Statistics:
        """Return those of some of the rows."""
        return Statistics(self.tokens[rows], self.best[rows], self.totals[rows])


def statistics(scores: Tensor, library: Library | None = None) -> Statistics:
    """Return the statistics of scores (n, v), by the C extension where there is one."""
    if library is not None and scores.device.type == "cpu" and scores.dtype == torch.float32:
        tokens, best, totals = row_statistics(library, scores)
        return Statistics(tokens.numpy(), best.double().numpy(), totals.double().numpy())
    return _statistics(scores, softmax(scores))


def _statistics(scores: Tensor, probabilities: Tensor) -> Statistics:
    on_cpu = scores.device.type == "cpu"  # numpy finds a maximum there ten times faster than torch
    tokens = torch.from_numpy(scores.numpy().argmax(1)) if on_cpu else scores.argmax(1)
    best, share = (each.gather(1, tokens[:, None])[:, 0].double() for each in (scores, probabilities))
    return Statistics(tokens.cpu().numpy(), best.cpu().numpy(), (best - share.log()).cpu().numpy())


def softmax(scores: Tensor, *, logs: bool = False) -> Tensor:
    """Return each row's distribution (n, v), or its logarithm, with the same bits wherever the row lies."""
    compute = torch.log_softmax if logs else torch.softmax
    if scores.device.type == "cpu":
        return compute(scores, 1)
    return compute(_aligned(scores), 1)[:, : scores.shape[1]]


def _aligned(scores: Tensor) -> Tensor:
    """Return scores (n, v) with removed tokens behind them: GPUs sum from a row's first whole line on."""
    behind = -scores.shape[1] % _LINE
    return pad(scores, (0, behind), value=-torch.inf) if behind else scores


def draw(scores: Tensor, noise: Floats) -> tuple[Integers, Floats]:
    """Return a token of each row's distribution, and the logarithm of the row's mass, both (n,).

    It is the first whose cumulative mass passes the `noise` (n,), of [0, 1): its block is found
    first, by the sums of blocks.
    """
    probabilities = softmax(scores)
    mass = block_sums(probabilities)
    with np.errstate(invalid="ignore"):
        edges = mass.cumsum(1)
        target = noise * edges[:, -1]
        at = np.minimum((edges <= target[:, None]).sum(1), mass.shape[1] - 1)[:, None]
        inside = target - np.take_along_axis(edges - mass, at, axis=1)[:, 0]
        share = np.clip(inside / np.take_along_axis(mass, at, axis=1)[:, 0], 0.0, 1.0)
    tokens = _draw_inside(probabilities, at * _BLOCK, share)
    return tokens, _statistics(scores, probabilities).totals


def _draw_inside(probabilities: Tensor, first: Integers, share: Floats) -> Integers:
    """Return of each row the token of a block where a share (n,) of the block's mass is passed."""
    ids = first + np.arange(_BLOCK)  # (n, _BLOCK)
    last = probabilities.shape[1] - 1
    at = torch.from_numpy(np.minimum(ids, last)).to(probabilities.device)
    mass = np.where(ids > last, 0.0, probabilities.gather(1, at).double().cpu().numpy())
    edges = mass.cumsum(1)
    with np.errstate(invalid="ignore"):
        passed = (edges <= (share * edges[:, -1])[:, None]).sum(1)
    positive = _BLOCK - 1 - (mass[:, ::-1] > 0).argmax(1)  # what has no mass is never drawn
    return np.minimum(first[:, 0] + np.minimum(passed, positive), last)


def block_sums(values: Tensor) -> Floats:
    """Return the sums (n, blocks) of blocks of columns; the last one may be shorter."""
    rows, columns = values.shape
    whole = columns // _BLOCK * _BLOCK
    sums = values[:, :whole].unflatten(1, (whole // _BLOCK, _BLOCK)).sum(2).double().cpu().numpy()
    if whole == columns:
        return sums
    rest = values[:, whole:].double().cpu().numpy().cumsum(1)[:, -1:]
    return np.concatenate([sums.reshape(rows, -1), rest], axis=1)
