"""What this process and its children hold while something runs: memory of their own, and open files."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import PAGE_BYTES

MIB = 1024 * 1024
_EVERY_SECONDS = 0.5
_WARM = (0.3, 0.5)  # of all work: when caches are filled and pools have grown
_LAST = (0.8, 1.0)
_GROWTH_MIB, _GROWTH_SHARE = 12.0, 0.05  # what allocators may come to
_GROWTH_FILES = 4  # connections and the like


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process holds at one moment."""

    done: float  # share of all work
    name: str  # of the process
    mib: float  # resident memory that is shared with nobody
    files: int


class Usage:
    """Samples of all processes, from beginning to end."""

    def __init__(
        self,
        processes: Callable[[], Mapping[int, str]] | None = None,
        warm: tuple[float, float] = _WARM,
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        """`processes` are those to look at, with their names; this one and its children, unless given."""
        self.samples: list[Sample] = []
        self._processes = processes or _own
        self._warm = warm
        self._every_seconds = every_seconds

    async def watch(self, done: Callable[[], float], show: Callable[[str], None]) -> None:
        """Take samples until cancelled, and show ten of them."""
        shown = 0.0
        while True:
            taken = sample(share := done(), self._processes())
            self.samples += taken
            if share >= shown:
                shown += 0.1
                held = ", ".join(f"{each.name} {each.mib:.0f} MiB {each.files} files" for each in taken)
                show(f"{share:4.0%}: {held}")
            await asyncio.sleep(self._every_seconds)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return of each process what it held once it was warm, and at the end."""
        table: dict[str, dict[str, float]] = {}
        for name in dict.fromkeys(each.name for each in self.samples):
            warm, last = (self._during(name, span) for span in (self._warm, _LAST))
            if warm and last:
                table[name] = {
                    "warm_mib": _middle(each.mib for each in warm),
                    "last_mib": _middle(each.mib for each in last),
                    "warm_files": _middle(each.files for each in warm),
                    "last_files": _middle(each.files for each in last),
                }
        return table

    def growth(self) -> list[str]:
        """Return what grew that should not."""
        found = []
        for name, held in self.summary().items():
            allowed = max(_GROWTH_MIB, held["warm_mib"] * _GROWTH_SHARE)
            if held["last_mib"] - held["warm_mib"] > allowed:
                found.append(f"{name} grew from {held['warm_mib']} to {held['last_mib']} MiB")
            if held["last_files"] - held["warm_files"] > _GROWTH_FILES:
                found.append(f"{name} had {held['warm_files']:.0f} files open, then {held['last_files']:.0f}")
        return found

    def _during(self, name: str, span: tuple[float, float]) -> list[Sample]:
        return [each for each in self.samples if each.name == name and span[0] <= each.done <= span[1]]


def sample(done: float = 0.0, processes: Mapping[int, str] | None = None) -> list[Sample]:
    """Return what processes hold now: this one and each of its children, unless they are given by name."""
    found = []
    for process, name in (_own() if processes is None else processes).items():
        try:
            _, resident, shared = map(int, Path(f"/proc/{process}/statm").read_text().split()[:3])
            files = len(list(Path(f"/proc/{process}/fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        found.append(Sample(done, name, round((resident - shared) * PAGE_BYTES / MIB, 1), files))
    return found


def _own() -> dict[int, str]:
    return {os.getpid(): "this process", **dict.fromkeys(sorted(_children()), "engine")}


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


def _middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)
