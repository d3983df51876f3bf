"""What a measurement ran on: every file of results says so."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# of the flags in /proc/cpuinfo, those that decide which kernels run
DECISIVE = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile")

_WIDTHS = {
    "amx": {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512": {"avx512f", "avx512bw"},
    "avx2": {"avx2", "fma"},
}


def machine() -> str:
    """Return a name for this kind of machine."""
    return re.sub(r"[^a-z0-9]+", "-", f"{_cpu()} {cores()} cores {_widest()}".lower()).strip("-")


def cores() -> int:
    """Return how many cores the machine has."""
    return os.cpu_count() or 1


def about() -> dict[str, object]:
    """Return what else decides the numbers."""
    flags = set(_information("flags").split())
    return {
        "machine": machine(),
        "cpu": _cpu(),
        "features": [flag for flag in DECISIVE if flag in flags],
        "cores": cores(),
        "memory_gb": round(PAGE_BYTES * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "day": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    """Return what the CPU calls itself, and its family where that is a brand of several."""
    name, family = _information("model name") or platform.machine(), _information("cpu family")
    return f"{name} of family {family}" if name == "AMD EPYC" else name


def _widest() -> str:
    """Return the best instructions that there are kernels for, "" without any of their own."""
    flags = set(_information("flags").split())
    return next((name for name, needed in _WIDTHS.items() if flags >= needed), "")


def _information(name: str) -> str:
    """Return a line of /proc/cpuinfo; "" where there is none."""
    file = Path("/proc/cpuinfo")
    found = re.search(rf"^{name}\s*: (.+)", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1] if found else ""
