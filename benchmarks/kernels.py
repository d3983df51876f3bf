"""Measure the C extension's kernels against what this machine can do at most, and beside torch.

    python -m benchmarks.kernels [--shapes 1536x576 ...] [--rows 1 8 32] [--threads 1] [--isa auto]

A shape is outputs x inputs. The roof is measured in between, by the same threads: reading memory
that no cache holds, and multiplying from registers with the instruction that the kernel uses; a
kernel's share is the time that the slower of both would take, of its own. Weights come from memory
too: enough of each shape is packed. One thread is timed by its CPU time, which other processes
disturb least, several by the clock; the best of the rounds counts. torch's column is its own
`F.linear` with weights of the same values in float32 (the engine with `native_kernels` off).
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import torch  # noqa: E402
from torch.nn.functional import linear as torch_linear  # noqa: E402

from inference.kernels.native import (  # noqa: E402
    Library,
    PackedLinear,
    WeightKind,
    open_library,
)
from inference.kernels.native_rows import row_statistics  # noqa: E402

_COLD_BYTES = 128 << 20  # of weights that are gone through, several times what the last cache holds
_PEAKS = {  # of parley_peak
    "float32": 0,
    "bfloat16": 0,
    "bfloat16 in 12 bits": 0,
    "float16": 0,
    "int8": 1,
    "int6": 1,
    "rounded": 2,
    "rounded in 12 bits": 2,
}
_SPLIT = ("bfloat16", "bfloat16 in 12 bits")  # with AMX: inputs as sums of three numbers of bfloat16
_ROUNDED = {"rounded": WeightKind.BFLOAT16, "rounded in 12 bits": WeightKind.CODED}  # inputs, too
_PEAK_ROUNDS = 20_000
_ROUNDS = 8
_VOCABULARY = 49_152


@dataclass(frozen=True, slots=True)
class Roof:
    """What the machine does at most."""

    bytes_per_second: float
    operations_per_second: float

    def seconds(self, moved: float, operations: float) -> float:
        """Return the least time for both."""
        return max(moved / self.bytes_per_second, operations / self.operations_per_second)


class Bench:
    """A library, its clock and its roofs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.clock = time.thread_time if library.threads == 1 else time.perf_counter
        self.memory = torch.zeros(_COLD_BYTES // 4)

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long it takes, once."""
        started = self.clock()
        run()
        return self.clock() - started

    def bandwidth(self) -> float:
        """Read memory once; return bytes per second."""
        functions, memory = self.library.functions, self.memory
        return memory.nbytes / self.seconds(
            lambda: functions.parley_read(self.library.handle, memory.data_ptr(), memory.numel())
        )

    def has(self, kind: str) -> bool:
        """Tell whether the CPU has an instruction for the kind."""
        return bool(self.library.functions.parley_peak(self.library.handle, _PEAKS[kind], 1))

    def peak(self, kind: str) -> float:
        """Return operations per second of the kind's instruction, or of float32's where the CPU hasn't it."""
        if self.library.has_amx and kind in _SPLIT:
            return self.peak("rounded") / 3
        peak, handle = self.library.functions.parley_peak, self.library.handle
        instruction = _PEAKS[kind] if self.has(kind) else 0
        operations = peak(handle, instruction, _PEAK_ROUNDS)
        times = [self.seconds(lambda: peak(handle, instruction, _PEAK_ROUNDS)) for _ in range(_ROUNDS)]
        return float(operations) / min(times)


def native_limits(library: Library) -> dict[str, float]:
    """Return read_gbs, fp32_gflops, bf16_gflops and int8_gops of all threads, without what the CPU lacks."""
    bench = Bench(library)
    limits = {"read_gbs": max(bench.bandwidth() for _ in range(_ROUNDS)) / 1e9}
    for name, kind in (("fp32_gflops", "float32"), ("bf16_gflops", "rounded"), ("int8_gops", "int8")):
        if bench.has(kind):
            limits[name] = bench.peak(kind) / 1e9
    return limits


def main() -> None:
    """Print a line for each kernel, shape, kind and number of rows."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    library = open_library(arguments.threads, arguments.isa)
    if library is None:
        raise SystemExit("there is no library to measure")
    bench = Bench(library)
    limits = native_limits(library)
    print(f"{library}: {', '.join(f'{name} {limit:.1f}' for name, limit in limits.items())}")
    for shape in arguments.shapes:
        n, k = map(int, shape.split("x"))
        for kind in arguments.kinds:
            if kind == WeightKind.INT6 and not bench.library.has_vnni:
                print(f"linear {n}x{k} {kind}: needs a CPU with AVX-512 VNNI")
                continue
            _linears(bench, n, k, kind, arguments.rows)
    for rows in arguments.rows:
        _statistics(bench, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["1536x576", "576x1536", "9728x896", "896x4864"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--kinds", nargs="+", choices=list(_PEAKS), default=list(_PEAKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="auto")
    return parser.parse_args()


def _linears(bench: Bench, n: int, k: int, kind: str, all_rows: list[int]) -> None:
    weights = [torch.randn(n, k) for _ in range(2)]
    weight_kind = _ROUNDED.get(kind) or WeightKind(kind)
    packed = [_pack(bench.library, weights[0], weight_kind, kind)]
    while len(packed) * packed[0].nbytes < _COLD_BYTES:
        packed.append(_pack(bench.library, weights[0], weight_kind, kind))
    copies = [weights[0].clone() for _ in range(max(2, _COLD_BYTES // weights[0].nbytes))]
    for rows in all_rows:
        x = torch.randn(rows, k)
        ours, theirs, bandwidth = [], [], 0.0
        for _ in range(_ROUNDS):
            bandwidth = max(bandwidth, bench.bandwidth())
            ours.append(bench.seconds(lambda: [linear(x) for linear in packed]) / len(packed))  # noqa: B023
            theirs.append(bench.seconds(lambda: [torch_linear(x, one) for one in copies]) / len(copies))  # noqa: B023
        roof = Roof(bandwidth, bench.peak(kind))
        times = (min(ours), min(theirs))
        _print(f"linear {n}x{k} {kind}", rows, times, packed[0].nbytes, 2.0 * rows * n * k, roof)


def _pack(library: Library, weight: torch.Tensor, kind: WeightKind, name: str) -> PackedLinear:
    return PackedLinear.pack(library, weight, None, kind, round_inputs=name in _ROUNDED)


def _statistics(bench: Bench, rows: int) -> None:
    copies = max(2, _COLD_BYTES // (4 * rows * _VOCABULARY))
    logits = [torch.randn(rows, _VOCABULARY) for _ in range(copies)]
    ours, theirs, bandwidth = [], [], 0.0
    for _ in range(_ROUNDS):
        bandwidth = max(bandwidth, bench.bandwidth())
        ours.append(bench.seconds(lambda: [row_statistics(bench.library, one) for one in logits]))
        theirs.append(bench.seconds(lambda: [(one.max(1), one.logsumexp(1)) for one in logits]))
    roof = Roof(bandwidth, bench.peak("float32"))
    # an exponential is ten operations or so: six multiply-adds and what splits the argument
    operations = 20.0 * logits[0].numel()
    times = (min(ours) / len(logits), min(theirs) / len(logits))
    _print(f"statistics {_VOCABULARY}", rows, times, logits[0].nbytes, operations, roof)


def _print(
    name: str, rows: int, times: tuple[float, float], moved: float, operations: float, roof: Roof
) -> None:
    seconds, theirs = times
    share = roof.seconds(moved, operations) / seconds
    print(
        f"{name:28s} rows {rows:4d} {seconds * 1e6:9.1f} us {moved / seconds / 1e9:6.1f} GB/s "
        f"{operations / seconds / 1e9:6.0f} Gop/s  {share:4.0%} of the roof, "
        f"torch {theirs * 1e6:9.1f} us, {theirs / seconds:.2f} times as long",
        flush=True,
    )


if __name__ == "__main__":
    main()
