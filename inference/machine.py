"""What of the machine this process may use: memory and cores, within the container's limits."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = (  # of control groups: the limit, what is used, and of what; without a limit the older's is huge
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the plan may count on."""

    device_type: str  # "cpu", "cuda"
    free_bytes: int
    threads: int = 1  # that compute
    isa: str = "torch"  # of the native kernels; "torch": there are none
    flops: float = 0.0  # of a GPU a second, cautiously; 0.0: not known
    cache_bytes: int | None = None  # that were found to be left for KV cache and states; None: not measured


def free_memory() -> int:
    """Return the bytes that this process may still use: the machine's, within the container's limit."""
    left = (_left(limit, used, stat) for limit, used, stat in _MEMORY)
    return max(min([_meminfo_available(), *(each for each in left if each is not None)]), 0)


def usable_cores() -> int:
    """Return how many cores this process may keep busy.

    Two hardware threads of one core count once: they share what multiplies.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = len({_siblings(cpu) for cpu in allowed})
    quota = _quota()
    return max(min(cores, int(quota)) if quota is not None else cores, 1)


def release_memory() -> None:
    """Give memory that was freed back to the system: glibc keeps what large blocks were cut of."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _siblings(cpu: int) -> str:
    """Return which hardware threads share the core of one; itself if the system doesn't say."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> float | None:
    """Return how many cores' time the container gets; None: all."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):  # the older kind of control group, or none
        quota, every = (_read_int(_CGROUP / f"cpu/cpu.cfs_{name}_us") or -1 for name in ("quota", "period"))
        return quota / every if quota > 0 and every > 0 else None
    return None if limit == "max" else int(limit) / int(period)


def _left(limit: str, used: str, stat: str) -> int | None:
    """Return what a control group leaves of its memory; None if it has no limit, or there is none."""
    most, taken = _read_int(_CGROUP / limit), _read_int(_CGROUP / used)
    return None if most is None or taken is None else most - taken + _file_cache(_CGROUP / stat)


def _file_cache(stat: Path) -> int:
    """Return what the container's files take of its memory, which the system gives up when it is needed.

    Weights that were just downloaded are there as well: they would leave no room for themselves.
    """
    try:
        sizes = dict(line.split() for line in stat.read_text().splitlines())
        # An older control group has both, and the totals with those beneath it, as its usage is
        total = "total_" if "total_inactive_file" in sizes else ""
        return sum(int(sizes.get(f"{total}{name}", 0)) for name in ("active_file", "inactive_file"))
    except (OSError, ValueError):  # none is said to be there
        return 0


def _meminfo_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: half of what is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no control group, or "max"
        return None
