"""What the machine does at most: bytes read from memory, operations; by our own threads and by torch's.

    python -m benchmarks.limits

prints them as JSON. The larger of both counts: nobody's share is to look better than it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from inference.kernels.native import Library, open_library

ROUNDS = 7  # of each measurement; the best counts
READ_FLOATS = 64 << 20  # 256 MB: far beyond any cache
SIDES = (256, 2048)  # of the matrices; the larger ones where they take less than this:
LONGEST_SECONDS = 1.0
PEAK_ROUNDS = 20_000  # of our own loop, some milliseconds
FLOAT, INT8, BFLOAT16 = range(3)  # what `parley_peak` calls them


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Per second; a product with its sum counts as two operations."""

    read_bytes: float
    float_flops: float
    bfloat16_flops: float
    int8_flops: float

    @property
    def mixed_flops(self) -> float:
        """Return how fast float32 is multiplied by bfloat16 unrounded: it is the sum of three of these."""
        return max(self.float_flops, self.bfloat16_flops / 3)

    def larger(self, other: Limits) -> Limits:
        """Return the larger of each."""
        mine, others = asdict(self), asdict(other)
        return Limits(**{name: max(mine[name], others[name]) for name in mine})


def measure_limits(library: Library | None, threads: int | None = None) -> Limits:
    """Measure all of them, with our own threads where there is a library, and with torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or (library.threads if library else before))
    try:
        found = _by_torch()
    finally:
        torch.set_num_threads(before)
    found = found.larger(_by_library(library)) if library else found
    # Whatever has fewer bits can be widened: without instructions of its own it is as fast as float32
    return replace(
        found,
        bfloat16_flops=max(found.bfloat16_flops, found.float_flops),
        int8_flops=max(found.int8_flops, found.float_flops),
    )


def _by_library(library: Library) -> Limits:
    values = torch.rand(READ_FLOATS)
    read = _seconds(lambda: library.functions.parley_read(library.handle, values.data_ptr(), READ_FLOATS))
    return Limits(
        read_bytes=4 * READ_FLOATS / read,
        float_flops=_peak(library, FLOAT),
        bfloat16_flops=_peak(library, BFLOAT16),
        int8_flops=_peak(library, INT8),
    )


def reading(library: Library) -> Callable[[], float]:
    """Return what reads memory once with our own threads, and gives the bytes per second."""
    values = torch.rand(READ_FLOATS)

    def run() -> float:
        began = time.perf_counter()
        library.functions.parley_read(library.handle, values.data_ptr(), READ_FLOATS)
        return 4 * READ_FLOATS / (time.perf_counter() - began)

    return run


def _peak(library: Library, kind: int) -> float:
    def run() -> int:
        operations: int = library.functions.parley_peak(library.handle, kind, PEAK_ROUNDS)
        return operations

    return run() / _seconds(run)


def _by_torch() -> Limits:
    values = torch.rand(READ_FLOATS)
    matrix, vector = values.view(-1, 4096), torch.rand(4096)
    read = min(_seconds(values.sum), _seconds(lambda: torch.mv(matrix, vector)))
    return Limits(
        read_bytes=4 * READ_FLOATS / read,
        float_flops=_products(torch.float32),
        bfloat16_flops=_products(torch.bfloat16),
        int8_flops=_int8_products(),
    )


def _products(dtype: torch.dtype) -> float:
    def product(side: int) -> Callable[[], object]:
        left, right = (torch.rand(side, side).to(dtype) for _ in range(2))
        return lambda: left @ right

    return _fastest(product)


def _int8_products() -> float:
    def product(side: int) -> Callable[[], object]:
        left, right = (torch.randint(-100, 100, (side, side), dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(left, right)

    return _fastest(product)


def _fastest(product: Callable[[int], Callable[[], object]]) -> float:
    """Return the operations of a second; of a CPU without the instructions large matrices take minutes."""
    small, large = SIDES
    seconds = _seconds(product(small))
    rate = 2 * small**3 / seconds
    if seconds * (large / small) ** 3 > LONGEST_SECONDS:
        return rate
    return max(rate, 2 * large**3 / _seconds(product(large)))


def _seconds(run: Callable[[], object]) -> float:
    """Return the least time of a call."""
    run()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    print(json.dumps(asdict(measure_limits(open_library()))))
