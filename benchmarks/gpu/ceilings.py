"""What a device does at most, measured, and the least time that a step of decodes could take on it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from benchmarks.gpu.clock import wall_seconds
from benchmarks.gpu.models import Shape

_ROUNDS = 7
_CUDA_BYTES, _CPU_BYTES = 4 << 30, 64 << 20  # far beyond any cache
_CUDA_SIDE, _CPU_SIDE = 8192, 512  # of the matrices


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Per second; a product with its sum counts as two operations."""

    copy_bytes: float  # read and written
    read_bytes: float
    flops: float  # of matrices in 16 bits, on the CPU in float32

    @property
    def bytes(self) -> float:
        """Return the faster way to go through memory: nobody's share is to look better than it is."""
        return max(self.copy_bytes, self.read_bytes)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure them on random numbers: zeros are multiplied faster."""
    cuda = device.type == "cuda"
    size, side = (_CUDA_BYTES, _CUDA_SIDE) if cuda else (_CPU_BYTES, _CPU_SIDE)
    dtype = torch.bfloat16 if cuda else torch.float32
    values = torch.randn(size // 4, device=device)
    into = torch.empty_like(values)
    copied = _median(lambda: into.copy_(values), device)
    read = _median(values.sum, device)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiplied = _median(lambda: left @ right, device)
    return Ceilings(2 * size / copied, size / read, 2 * side**3 / multiplied)


def floor_seconds(
    shape: Shape, ceilings: Ceilings, batch: int, context: float, itemsize: int
) -> tuple[float, str]:
    """Return the least time of a step, and what bounds it.

    Each weight, key and value is read once, and each state read and written.
    """
    reading = itemsize * shape.multiplied / ceilings.bytes
    multiplying = 2 * shape.multiplied * batch / ceilings.flops
    cache = (itemsize * shape.kv_numbers * context + 2 * shape.state_bytes) * batch / ceilings.bytes
    bound = "products" if multiplying > reading else "cache" if cache > reading else "weights"
    return max(reading, multiplying) + cache, bound


def prefill_ceiling(shape: Shape, ceilings: Ceilings) -> float:
    """Return the most tokens of prompts a second, attention not counted, nor the head, which few need."""
    head = int(shape.config["vocab_size"] * shape.config["hidden_size"])
    return ceilings.flops / (2 * (shape.multiplied - head))


def _median(run: object, device: torch.device) -> float:
    assert callable(run)
    run()
    return statistics.median(wall_seconds(run, device) for _ in range(_ROUNDS))
