"""A token of each row of logits: the likeliest, or one drawn by Gumbel's noise; two kernels, nothing else.

The first has a program for each block of each row and writes what it found there; the second
combines a row's blocks. Blocks are the same for any number of rows and nothing is added up
atomically, so a row's token and log-probability depend on that row alone, to the last bit.
The noise is that of inference/gpu/noise.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu import noise
from inference.gpu.batch import Draws, Sampled
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

BLOCK = 4096  # tokens of one program: 32 programs for a row of 128 Ki
_STEP = tl.constexpr(noise.STEP)
_STRIDE = tl.constexpr(noise.STRIDE)
_TOKEN_STRIDE = tl.constexpr(noise.TOKEN_STRIDE)
_MOST = tl.constexpr(noise.MOST)
_LEAST = tl.constexpr(noise.LEAST)


def sample(logits: Tensor, draws: Draws, *, out: Sampled | None = None) -> Sampled:
    """Choose a token of each row (R, V); see inference.gpu.noise.sample, which it equals."""
    rows, vocabulary = logits.shape
    device = logits.device
    if out is None:
        out = Sampled(
            torch.empty(rows, dtype=torch.int64, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.bool, device=device),
        )
    if logits.stride(1) != 1:
        raise ValueError("the logits of a row must lie side by side; call contiguous() first")
    if not rows:
        return out
    blocks = triton.cdiv(vocabulary, BLOCK)
    found = torch.empty(3, rows, blocks, dtype=torch.float32, device=device)
    at = torch.empty(2, rows, blocks, dtype=torch.int32, device=device)
    warped = draws.warped.view(torch.uint8)
    launch(
        _search, (rows, blocks),
        logits, draws.seeds, draws.positions, draws.temperatures, warped, found, at,
        logits.stride(0), vocabulary, rows * blocks,
        BLOCK=BLOCK, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    launch(
        _combine, (rows,),
        logits, draws.temperatures, warped, found, at,
        out.tokens, out.logprobs, out.finite.view(torch.uint8),
        logits.stride(0), blocks, rows * blocks,
        BLOCKS=triton.next_power_of_2(blocks), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _mix64(value: tl.tensor) -> tl.tensor:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _mix32(value: tl.tensor) -> tl.tensor:
    value = (value ^ (value >> 16)) * 0x7FEB352D
    value = (value ^ (value >> 15)) * 0x846CA68B
    return value ^ (value >> 16)


@triton.jit
def noise_key(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Return the uint64 of a seed and a position, int64."""
    key = seed.to(tl.uint64, bitcast=True) + _STEP
    return _mix64(_mix64(key) + position.to(tl.uint64, bitcast=True) * _STRIDE)


@triton.jit
def random_bits(seed: tl.tensor, position: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """Return the uint32 of each token (n,) int32, of a seed and a position, int64."""
    key = noise_key(seed, position)
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    return _mix32(_mix32(tokens.to(tl.uint32) * _TOKEN_STRIDE + low) ^ high)


@triton.jit
def gumbel(bits: tl.tensor) -> tl.tensor:
    """Return Gumbel's noise of uint32 bits, float32; see inference.gpu.noise.gumbel."""
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, _MOST)  # 2 ** -32
    series = v * (1.0 + v * (0.5 + v * (0.3333333333333333 + v * 0.25)))
    return -tl.log(tl.where(v < 0.015625, series, -tl.log(1.0 - v)))


@triton.jit
def _first(scores: tl.tensor, best: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """Return the lowest id whose score is the best."""
    return tl.min(tl.where(scores == best, ids, 2147483647), 0)


@triton.jit
def _inverse(temperature: tl.tensor) -> tl.tensor:
    """Return what scores are multiplied with: 1 for a row whose best token is taken."""
    return tl.where(temperature > 0, 1.0 / tl.maximum(temperature, _LEAST), 1.0)


@triton.jit(do_not_specialize=["plane"])
def _search(
    logits_ptr: tl.tensor,
    seeds_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    temperatures_ptr: tl.tensor,
    warped_ptr: tl.tensor,
    found_ptr: tl.tensor,  # (3, rows, blocks): best logit; mass, best noisy score, both relative to it
    at_ptr: tl.tensor,  # (2, rows, blocks): token to take; whether all are numbers
    stride: tl.tensor,
    vocabulary: tl.tensor,
    plane: tl.tensor,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    await_earlier(OVERLAPS)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocabulary
    x = tl.load(logits_ptr + row * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    numbers = x < float("inf")  # neither NaN nor infinite
    x = tl.where(numbers, x, float("-inf"))
    best = tl.max(x, 0)
    below = x - tl.where(best == float("-inf"), 0.0, best)  # a block of minus infinities stays one
    temperature = tl.load(temperatures_ptr + row)
    inverse = _inverse(temperature)
    scale = tl.where(tl.load(warped_ptr + row) != 0, inverse, 1.0)
    token, score = _first(x, best, ids), tl.full([], 0.0, tl.float32)
    if temperature > 0:
        bits = random_bits(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), ids)
        noisy = below * inverse + gumbel(bits)
        score = tl.max(noisy, 0)
        token = _first(noisy, score, ids)
    at = row * tl.num_programs(1) + block
    tl.store(found_ptr + at, best)
    tl.store(found_ptr + plane + at, tl.sum(tl.exp(below * scale), 0))
    tl.store(found_ptr + 2 * plane + at, score)
    tl.store(at_ptr + at, token)
    tl.store(at_ptr + plane + at, tl.min(numbers.to(tl.int32), 0))


@triton.jit(do_not_specialize=["plane"])
def _combine(
    logits_ptr: tl.tensor,
    temperatures_ptr: tl.tensor,
    warped_ptr: tl.tensor,
    found_ptr: tl.tensor,
    at_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    logprobs_ptr: tl.tensor,
    finite_ptr: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    plane: tl.tensor,
    BLOCKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    await_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    at = row * blocks + block
    bests = tl.load(found_ptr + at, mask=inside, other=float("-inf"))
    best = tl.max(bests, 0)
    numbers = tl.min(tl.load(at_ptr + plane + at, mask=inside, other=1), 0)
    finite = (numbers != 0) & (best > float("-inf"))
    best = tl.where(finite, best, 0.0)
    below = bests - best
    inverse = _inverse(tl.load(temperatures_ptr + row))
    scale = tl.where(tl.load(warped_ptr + row) != 0, inverse, 1.0)
    scores = tl.load(found_ptr + 2 * plane + at, mask=inside, other=float("-inf")) + below * inverse
    ids = tl.load(at_ptr + at, mask=inside, other=2147483647)
    token = tl.where(finite, _first(scores, tl.max(scores, 0), ids), 0)
    masses = tl.load(found_ptr + plane + at, mask=inside, other=0.0) * tl.exp(below * scale)
    total = tl.where(finite, tl.sum(masses, 0), 1.0)
    chosen = tl.load(logits_ptr + row * stride + token).to(tl.float32)
    logprob = (chosen - best) * scale - tl.log(total)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(logprobs_ptr + row, tl.where(finite, logprob, float("nan")))
    tl.store(finite_ptr + row, finite.to(tl.uint8))
