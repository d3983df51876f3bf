"""Which of a machine's cores are one shard's: those of some sockets, in whose memory its weights then lie."""

from __future__ import annotations

import os
from pathlib import Path

from inference.config import EngineConfig
from inference.machine import usable_cores

_NODES = Path("/sys/devices/system/node")


def cores_of(rank: int, count: int) -> set[int] | None:
    """Return the CPUs for one of a machine's shards; None where it has one socket, whose cores all may use.

    `count`: the shards on this machine, `rank` one's place among them. A node of memory (NUMA) is a socket,
    or a part of one.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = os.sched_getaffinity(0)
    nodes = [each & allowed for each in _nodes() if each & allowed]
    if len(nodes) < 2 or len(allowed) < count:
        return None
    if len(nodes) >= count:
        return set().union(*nodes[rank * len(nodes) // count : (rank + 1) * len(nodes) // count])
    node = nodes[rank * len(nodes) // count]
    beside = [each for each in range(count) if each * len(nodes) // count == rank * len(nodes) // count]
    place = sorted(node)
    first, end = (len(place) * at // len(beside) for at in (beside.index(rank), beside.index(rank) + 1))
    return set(place[first:end]) or node


def stay_on(cores: set[int] | None) -> None:
    """Have this thread, and those that it starts, run on these cores alone; None: on any."""
    if cores is not None:
        os.sched_setaffinity(0, cores)


def of_its_own(threads: int, config: EngineConfig) -> int:
    """Return how many threads compute in a shard that stays on its cores: as many, if none were asked for."""
    return threads if config.threads is not None else min(threads, usable_cores())


def _nodes() -> list[set[int]]:
    """Return the CPUs of each node of memory that has any, in order; [] where the system doesn't say."""
    try:
        nodes = sorted(_NODES.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
        return [cpus for each in nodes if (cpus := _cpus((each / "cpulist").read_text()))]
    except (OSError, ValueError):
        return []


def _cpus(text: str) -> set[int]:
    """Return the CPUs of a list such as 0-3,8-11."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
