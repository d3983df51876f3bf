"""A watermark in generated text: which tokens it favours, and whether a text bears it.

Kirchenbauer et al., "A watermark for large language models", 2023. At each place the token before
it splits the vocabulary into green and red, and the logits of green tokens are raised by delta; a
text that has more green tokens than chance explains was generated with the mark. Only gamma is
needed to find it, neither the model nor delta.

A token is green if a hash of it and of the token before is below gamma. So the green list is a
share gamma of the vocabulary in expectation (of 100,000 tokens, within 0.5 % in practice), and the
same on every device. TGI means the same by gamma and delta but takes the first gamma * v tokens of
a random permutation, so its detectors and ours don't know each other's texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import erfc, sqrt
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

KEY = 15485863  # TGI's and the paper's: the token before is multiplied by it

Integers = TypeVar("Integers", NDArray[np.int32], "Tensor")  # int32


@dataclass(frozen=True, slots=True)
class Detection:
    """What a text shows of the watermark."""

    z_score: float  # standard deviations by which green tokens exceed chance; above 4 is a mark
    green_tokens: int
    scored_tokens: int  # those that have one before them, each such pair counted once
    p_value: float  # how likely a text without the mark has this z-score or more


def detect(ids: Sequence[int], *, gamma: float = 0.5) -> Detection:
    """Return how many tokens of a text are green, and how unlikely that is by chance.

    `ids` are the generated tokens, best with the prompt's last one in front; `gamma` is the share
    that they were generated with. A pair of tokens that comes again says nothing new and is counted
    once, else a text that repeats itself would look marked or unmarked by chance. Raises ValueError
    for a gamma that is not between 0 and 1.
    """
    if not 0 < gamma < 1:
        raise ValueError(f"`gamma` must be > 0 and < 1. Given: {gamma}")
    pairs = sorted(set(pairwise(ids)))
    if not pairs:
        return Detection(0.0, 0, 0, 0.5)
    before, tokens = np.array(pairs, dtype=np.int64).T
    green = int((scatter(seeds(before), tokens.astype(np.int32)) < threshold(gamma)).sum())
    expected = gamma * len(pairs)
    z_score = (green - expected) / sqrt(expected * (1 - gamma))
    return Detection(z_score, green, len(pairs), erfc(z_score / sqrt(2)) / 2)


def seeds(before: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return what decides the green list after each token of `before` (n,)."""
    keyed = (before * KEY).astype(np.uint32).view(np.int32)  # modulo 2**32
    return _mix(keyed)


def scatter(seeds: Integers, tokens: Integers) -> Integers:
    """Return a number of all int32 for each pair of seed and token; the two broadcast."""
    return _mix(seeds ^ tokens)


def threshold(gamma: float) -> int:
    """Return the int32 below which a share gamma, within (0, 1), of all int32 lies."""
    return min(round(gamma * 2**32), 2**32 - 1) - 2**31


def _mix(values: Integers) -> Integers:
    """Scramble int32 values in place, one to one.

    The 32-bit finaliser with the least bias known, lowbias32 (Wellons, "Prospecting for hash
    functions", 2018). Shifts are arithmetic, hence the masks.
    """
    values ^= (values >> 16) & 0xFFFF
    values *= 0x7FEB352D
    values ^= (values >> 15) & 0x1FFFF
    values *= 0x846CA68B - 2**32
    values ^= (values >> 16) & 0xFFFF
    return values
