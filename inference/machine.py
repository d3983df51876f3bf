"""What of the machine this process may use: memory and cores, within its control groups' limits."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from inference.cgroups import core_quota, memory_left, memory_limit

Each = TypeVar("Each")

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the plan may count on."""

    device_type: str  # "cpu", "cuda"
    free_bytes: int
    threads: int = 1  # that compute
    isa: str = "torch"  # of the native kernels; "torch": there are none
    flops: float = 0.0  # of a GPU a second, cautiously; 0.0: not known
    cache_bytes: int | None = None  # that were found to be left for KV cache and states; None: not measured


def free_memory(engines: int = 1) -> int:
    """Return the bytes that this process may still use: the machine's, within its control groups' limits.

    Of several engines that share them each has its part, whatever the others haven't taken yet.
    """
    available, left = _meminfo_available(), memory_left()
    free = max(available if left is None else min(available, left), 0)
    if engines == 1:
        return free
    installed, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()
    return min(free, (installed if limit is None else min(installed, limit)) // engines)


def usable_cores() -> int:
    """Return how many cores this process may keep busy.

    Two hardware threads of one core count once: they share what multiplies.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = len({_siblings(cpu) for cpu in allowed})
    quota = core_quota()
    return max(min(cores, int(quota)) if quota is not None else cores, 1)


def release_memory() -> None:
    """Give memory that was freed back to the system, also what cycles held."""
    gc.collect()
    _trim()


def trimming(several: Iterable[Each]) -> Iterator[Each]:
    """Yield what is yielded, and before each give memory that was freed back to the system.

    What is made of large blocks, one after the other, leaves glibc with as much again as it made.
    """
    for each in several:
        _trim()
        yield each


def _trim() -> None:
    """Have glibc give back what it keeps of large blocks that were freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _siblings(cpu: int) -> str:
    """Return which hardware threads share the core of one; itself if the system doesn't say."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _meminfo_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: half of what is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024
