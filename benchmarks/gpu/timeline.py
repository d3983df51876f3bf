"""What a GPU did during some steps: how long it idled between kernels, and how many there were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_SHOWN = 12  # kernels that took most
_OTHERS = ("Memcpy HtoD", "Memcpy DtoH", "Memset")  # no work of a model's; copies within a device are


@dataclass(frozen=True, slots=True)
class Timeline:
    """From the first kernel's begin to the last one's end."""

    idle: float  # share of the time in which no kernel ran
    busy: float  # seconds in which one did
    kernels: int
    slowest: dict[str, float]  # seconds of all kernels of a name together, the most first


def timeline(run: Callable[[], object]) -> Timeline | None:
    """Return what a call that ends with the device at rest makes a GPU do; None if no kernel was seen."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    spans = [(event.time_range.start, event.time_range.end, event.name) for event in events]
    return of_spans([span for span in spans if not span[2].startswith(_OTHERS)])


def of_spans(spans: list[tuple[float, float, str]]) -> Timeline | None:
    """Return the timeline of kernels, each with its begin, its end (microseconds) and its name."""
    if not spans:
        return None
    spans = sorted(spans)
    busy, reached = 0.0, spans[0][0]
    taken: dict[str, float] = defaultdict(float)
    for start, end, name in spans:
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
        taken[name] += end - start
    whole = reached - spans[0][0]
    most = sorted(taken.items(), key=lambda each: -each[1])[:_SHOWN]
    slowest = {name[:60]: round(seconds * 1e-6, 9) for name, seconds in most}
    return Timeline(1 - busy / whole if whole else 0.0, 1e-6 * busy, len(spans), slowest)


def available(device: torch.device) -> bool:
    """Return whether there is a timeline to be had."""
    return device.type == "cuda"
