"""Noise that is a hash of (seed, position, token), and tokens chosen by it: torch's way, on any device.

It is what the Triton kernel of kernels/gpu/sampling.py computes, integer by integer, so that either
may choose a request's tokens: the oracle in tests, and the fallback where there is no Triton.

Seed and position become a key of 64 bits by two rounds of splitmix64's finaliser (Steele, Lea,
Flood, 2014), as in inference/sampling/noise.py. Its halves and the token become 32 bits by two rounds of a
finaliser of 32 bits (C. Wellons, "Prospecting for hash functions", 2018). For one key different
tokens have different bits. Everywhere R is rows and V the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.gpu.batch import Draws, Sampled

STEP = 0x9E3779B97F4A7C15  # what is added to a seed, so that seed 0 is like any other
STRIDE = 0xD1342543DE82EF95  # of positions
TOKEN_STRIDE = 0x9E3779B9
MOST = 1 - 2.0**-24  # the largest float32 below 1
LEAST = 2.0**-100  # of temperatures; it takes the best token, and scores don't overflow
_SERIES = 2.0**-6  # below it -log(1 - v) is computed by its series, which keeps all digits
_LOW = 0xFFFFFFFF


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return the key of each pair of seed and position, int64 as the 64 bits stand."""
    return _mix64(_mix64(seeds + _signed(STEP)) + positions * _signed(STRIDE))


def bits(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return the random bits of each token, (R, V) int64 of [0, 2**32), of seeds and positions (R,) int64."""
    key = keys(seeds, positions)[:, None]
    tokens = torch.arange(vocabulary, device=seeds.device)
    first = _mix32((tokens * TOKEN_STRIDE + (key & _LOW)) & _LOW)
    return _mix32(first ^ (key >> 32 & _LOW))


def gumbel(random: Tensor) -> Tensor:
    """Return noise of Gumbel's distribution, float32, of bits as `bits` returns them.

    It is -log(-log(1 - v)) with v uniform in (0, 1). The tokens that win have small v, of which
    a float32 keeps all digits; with 1 - v instead they would share some 2**23 values and tie.
    """
    v = ((random.float() + 0.5) * 2.0**-32).clamp(max=MOST)
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4))))
    return -torch.where(v < _SERIES, series, -(1 - v).log()).log()


def sample(logits: Tensor, draws: Draws) -> Sampled:
    """Choose a token of each row (R, V): the likeliest, the lowest id among equals, or one drawn.

    A row with a NaN, an infinity or nothing above minus infinity is not finite: its token is 0 and
    its log-probability NaN. Other rows don't notice.
    """
    scores = logits.float()
    numbers = scores < torch.inf  # neither NaN nor infinite
    scores = scores.where(numbers, -torch.inf)
    best = scores.amax(1, keepdim=True)
    finite = numbers.all(1) & (best[:, 0] > -torch.inf)
    below = scores - best  # NaN in rows that aren't finite
    drawn = draws.temperatures > 0
    inverse = (1 / draws.temperatures.clamp(min=LEAST)).where(drawn, 1.0)[:, None]
    noise = gumbel(bits(draws.seeds, draws.positions, logits.shape[1]))
    tokens = first_best((below * inverse + noise).where(drawn[:, None], below))
    tokens = tokens.where(finite, 0)
    scale = inverse.where(draws.warped[:, None], 1.0)
    mass = (below * scale).exp().sum(1).log()
    logprobs = below.gather(1, tokens[:, None])[:, 0] * scale[:, 0] - mass
    return Sampled(tokens, logprobs.where(finite, torch.nan), finite)


def first_best(scores: Tensor) -> Tensor:
    """Return the lowest id among each row's best; torch's argmax promises no order on a GPU."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    return ids.where(scores == scores.amax(1, keepdim=True), scores.shape[1]).amin(1)


def _mix64(values: Tensor) -> Tensor:
    values = (values ^ _shift(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shift(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shift(values, 31)


def _mix32(values: Tensor) -> Tensor:
    values = ((values ^ (values >> 16)) * 0x7FEB352D) & _LOW
    values = ((values ^ (values >> 15)) * 0x846CA68B) & _LOW
    return values ^ (values >> 16)


def _shift(values: Tensor, count: int) -> Tensor:
    """Return int64 values shifted to the right as if they had no sign."""
    return (values >> count) & ((1 << (64 - count)) - 1)


def _signed(constant: int) -> int:
    """Return 64 bits as the int64 that has them."""
    return constant - (1 << 64) if constant >> 63 else constant
