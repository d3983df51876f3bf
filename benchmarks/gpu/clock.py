"""What a call takes, on the device and on the wall; and how much time is left for all of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from inference.gpu.linears import graph_seconds

_CALLS = 5  # of which the median counts, where nothing can be captured


class OutOfTime(Exception):
    """The time for everything is used up; what is missing is said."""


class Clock:
    """The seconds that everything together may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Return the seconds left."""
        return self._end - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Raise OutOfTime if there isn't so much left."""
        if self.left < seconds:
            raise OutOfTime(f"{what} takes about {seconds:.0f} s, and {max(self.left, 0):.0f} s are left")


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return what a call takes from its begin to the device's rest."""
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def call_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return what a call takes of the device's time, its launches hidden by a graph where that can be."""
    if device.type == "cuda":
        return graph_seconds(run)
    run()
    return statistics.median(wall_seconds(run, device) for _ in range(_CALLS))
