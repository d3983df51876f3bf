"""What a token scores after penalties and temperature, and scores as integers that sort alike.

The arithmetic is the host's (`sampling/penalties.py`, `sampling/filters.py`), float32 rounded after each
operation, so that filters find the same tokens equal: kernels that use it are compiled without
fusing multiplications and additions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inference.gpu.wishes import Wish
from inference.kernels.gpu.sampling import noise_key
from inference.sampling.recipe import MOST_COUNTED

WISHES = tl.constexpr(len(Wish))
TOP_K = tl.constexpr(int(Wish.TOP_K))
TOP_P = tl.constexpr(int(Wish.TOP_P))
LEAST = tl.constexpr(int(Wish.LEAST))
_REPETITION = tl.constexpr(int(Wish.REPETITION))
_FREQUENCY = tl.constexpr(int(Wish.FREQUENCY))
_PRESENCE = tl.constexpr(int(Wish.PRESENCE))
_PENALISED = tl.constexpr(int(Wish.PENALISED))
_MOST_COUNTED = tl.constexpr(MOST_COUNTED)
PICK, WALK = tl.constexpr(1), tl.constexpr(2)  # how a row is chosen of; 0: not
_TINY = tl.constexpr(2.0**-126)  # the smallest temperature


@triton.jit
def penalised(logits_ptr, marks_ptr, wishes_ptr, ids, inside):
    """Return the logits (n,) of a row's ids (n,) after penalties; minus infinity: no number, or outside."""
    x = tl.load(logits_ptr + ids, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x < float("inf"), x, float("-inf"))
    if tl.load(wishes_ptr + _PENALISED) != 0:
        repetition = tl.load(wishes_ptr + _REPETITION).to(tl.float32)
        frequency = tl.load(wishes_ptr + _FREQUENCY).to(tl.float32)
        presence = tl.load(wishes_ptr + _PRESENCE).to(tl.float32)
        marks = tl.load(marks_ptr + ids, mask=inside, other=0).to(tl.int32)
        weaker = tl.where(x < 0, x * repetition, tl.div_rn(x, repetition))
        x = tl.where(marks != 0, weaker, x)
        counts = (marks & _MOST_COUNTED).to(tl.float32)
        x = x - counts * frequency
        x = x - tl.where(counts > 0, presence, 0.0)
    return x


@triton.jit
def heated(x, best, temperature):
    """Return scores divided by a temperature, the row's best moved to 0; 0 and 1: as they are."""
    if (temperature > 0) & (temperature != 1.0):
        x = tl.div_rn(x - best, tl.maximum(temperature, _TINY))
    return x


@triton.jit
def rank_of(scores):
    """Return int64 of [0, 2 ** 32), in the order of float32 scores; both zeros are one."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483648


@triton.jit
def score_of(ranks):
    """Return the float32 scores that have these ranks."""
    bits = (ranks - 2147483648).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def key_of(scores, ids):
    """Return int64 that are the smaller the better a token scores; among equals the lower id's is."""
    return ((4294967295 - rank_of(scores)) << 31) | ids.to(tl.int64)


@triton.jit
def score_of_key(keys):
    """Return the scores that are in keys."""
    return score_of(4294967295 - (keys >> 31))


@triton.jit
def uniform(seed, position):
    """Return the number of [0, 1) of a seed and a position, float64; see inference.gpu.shaping."""
    return (noise_key(seed, position) >> 16).to(tl.float64) * 3.552713678800501e-15  # 2 ** -48


@triton.jit
def put(drawn_ptr, logits_ptr, token, left, warped):
    """Write a token and its log-probability: `left` of what is left, or the model's own.

    What stands there is another token and its own: the difference of their logits tells.
    """
    own = tl.load(drawn_ptr + 1)
    if warped == 0:
        before = tl.load(drawn_ptr).to(tl.int64)
        better = tl.load(logits_ptr + token).to(tl.float64) - tl.load(logits_ptr + before).to(tl.float64)
        left = own + better
    tl.store(drawn_ptr, token.to(tl.float64))
    tl.store(drawn_ptr + 1, left)


@triton.jit
def weight_of(scores, best):
    """Return how likely tokens are in units of the best one, float64."""
    return tl.exp(scores.to(tl.float64) - best.to(tl.float64))
