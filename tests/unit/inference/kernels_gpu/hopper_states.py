"""Launches of what layers that keep a state are computed by; see `hopper`, which comes first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu import hopper  # isort: skip

import torch

from inference.gpu.ops import triton_ops
from inference.gpu.recurrent import Runs
from inference.gpu.state_kernels import DeviceStateKernels
from inference.kernels.gpu.places import find_places, move
from inference.kernels.state_parts import Heads

_SEQUENCES, _TOKENS = 8, 64


def recur(
    heads: Heads, dtype: torch.dtype, *, longest: int, delta: bool, deterministic: bool = False
) -> None:
    """Launch a recurrence and its convolution."""
    ops = triton_ops(deterministic=deterministic)
    kernels, runs = DeviceStateKernels(ops), _runs(longest)
    rates, norm = torch.empty(heads.values), torch.empty(heads.value_dim)
    x = torch.empty(_TOKENS, heads.channels, dtype=dtype)
    steps = torch.empty(_TOKENS, heads.values, dtype=dtype)
    convolve = kernels.convolution(torch.empty(heads.channels, 4), None, silu=True)
    x = convolve(x, convolve.states(2), runs)
    given = {"rates": rates, "step_biases": rates}
    if delta:
        rule = kernels.delta_rule(heads, **given, norm=norm, eps=1e-6, scale=1.0)
        gates = torch.empty(_TOKENS, heads.values * heads.value_dim, dtype=dtype)
        rule(x, gates, steps, steps, rule.states(2), runs)
    else:
        scan = kernels.mamba2(heads, **given, skips=rates, limits=(0.0, float("inf")))
        scan(x, steps, scan.states(2), runs)


def scan(channels: int, keys: int, dtype: torch.dtype) -> None:
    """Launch Mamba's recurrence."""
    kernels = DeviceStateKernels(triton_ops())
    biases, x = torch.empty(channels), torch.empty(_TOKENS, channels, dtype=dtype)
    mamba = kernels.mamba(rates=torch.empty(channels, keys), step_biases=biases, skips=biases)
    projected = torch.empty(_TOKENS, keys, dtype=dtype)
    mamba(x, x, (projected, projected), x, mamba.states(2), _runs(_TOKENS))


def place() -> None:
    """Launch what finds and moves states."""
    slots, held = torch.zeros(_SEQUENCES, dtype=torch.int32), torch.zeros(_SEQUENCES, 2, dtype=torch.int32)
    find_places(slots, torch.zeros(_SEQUENCES + 1, dtype=torch.int32), slots, held)
    move(torch.empty(4, 4096), held, slots, slots, slots, keeps=True)
    move(torch.empty(4, 4096), held, slots, slots, slots, keeps=False)


def _runs(longest: int) -> Runs:
    indices = torch.zeros(_SEQUENCES + 1, dtype=torch.int32)
    row = indices[:_SEQUENCES]
    blocks = torch.zeros(2, _SEQUENCES, dtype=torch.int32)
    return Runs(starts=indices, reads=row, writes=row, blocks=blocks, tile=16, longest=longest)


QWEN, GRANITE = Heads(16, 16, 128, 128), Heads(1, 48, 128, 32)
BF16, F32 = torch.bfloat16, torch.float32
STATES: dict[str, Callable[[], object]] = {
    "places": place,
    "delta, decodes": partial(recur, QWEN, BF16, longest=1, delta=True),
    "delta, prompts": partial(recur, QWEN, BF16, longest=_TOKENS, delta=True),
    "delta, prompts of float32": partial(recur, QWEN, F32, longest=_TOKENS, delta=True),
    "delta, deterministic": partial(recur, QWEN, BF16, longest=_TOKENS, delta=True, deterministic=True),
    "delta of 256": partial(recur, Heads(2, 6, 256, 256), BF16, longest=_TOKENS, delta=True),
    "delta of 256, decodes": partial(recur, Heads(2, 6, 256, 256), BF16, longest=1, delta=True),
    "mamba 2, decodes": partial(recur, GRANITE, BF16, longest=1, delta=False),
    "mamba 2, prompts": partial(recur, GRANITE, BF16, longest=_TOKENS, delta=False),
    "mamba": partial(scan, 8192, 16, BF16),
}

if __name__ == "__main__":
    hopper.main(STATES)
