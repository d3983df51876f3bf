"""What processes use, read from /proc: time and memory of a server with its children, and of all others."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import PAGE_BYTES

TICKS = os.sysconf("SC_CLK_TCK")  # per second, of the times in /proc
SAMPLE_SECONDS = 0.5
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds up to a moment."""

    busy: float  # of the whole machine
    stolen: float  # by the machine's own host
    server: float  # of the server's processes
    at: float  # time.perf_counter()


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def spent(pids: list[int]) -> Spent:
    """Return what the machine and these processes have spent so far."""
    numbers = [int(number) for number in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, interrupts, soft, stolen = numbers[:8]
    busy = (user + nice + system + interrupts + soft) / TICKS
    server = sum(int(fields[11]) + int(fields[12]) for pid in pids if (fields := _stat(pid))) / TICKS
    return Spent(busy, stolen / TICKS, server, time.perf_counter())


def resident_mb(pids: list[int]) -> float:
    """Return the resident memory of processes; what they share counts for each."""
    pages = 0
    for pid in pids:
        try:
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return pages * PAGE_BYTES / 1e6


def proportional_mb(pids: list[int]) -> float:
    """Return the same, with what several share counted once."""
    kilobytes = 0
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes * 1024 / 1e6


def wait_until_quiet(limit: float, pid: int = 0, *, share: float = 0.1, span: float = 1.0) -> bool:
    """Wait until others than the server use less than `share` of a core; false after `limit` seconds."""
    until = time.monotonic() + limit
    pids = tree(pid) if pid else []
    while time.monotonic() < until:
        before = spent(pids)
        time.sleep(span)
        after = spent(pids)
        if after.busy - before.busy - (after.server - before.server) < share * span:
            return True
    return False


class Watch:
    """A thread that notes the most memory a server has had, from its start on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take_peak(self) -> float:
        """Return the largest resident memory since the last call, in MB."""
        peak, self._peak = max(self._peak, resident_mb(tree(self._pid))), 0.0
        return peak

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, resident_mb(tree(self._pid)))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third, the state, on; [] if the process has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
