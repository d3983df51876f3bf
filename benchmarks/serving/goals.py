"""What Parley is to reach beside the best peer, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.serving.bounds import Bound, Bounds
from benchmarks.serving.servers import Group

Table = dict[str, dict[str, Any]]  # server -> its results; see `results.py`
FLOAT = {"c1": 1.5, "c8": 1.5, "c32": 1.2, "prefix8": 1.8}
INT8 = {"c1": 1.8, "c8": 1.8, "c32": 1.8, "prefix8": 1.8}
COMPARISONS: tuple[tuple[str, tuple[Group, ...], dict[str, float]], ...] = (
    ("fp32 or 16 bit", (Group.F32, Group.HALF), FLOAT),
    ("fp32", (Group.F32,), FLOAT),
    ("16 bit", (Group.HALF,), FLOAT),
    ("int8", (Group.INT8,), INT8),
)
NO_WORSE = (("TTFT, median", "ttft_ms"), ("ITL, 99th percentile", "itl_p99_ms"))
SECOND_RUN = 0.2  # of the first run's time to first token
MEMORY_PEER = "transformers serve f32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One line of the report; `value` is ours and `other` the peer's, in `unit`."""

    what: str
    ours: str  # the server
    value: float
    peer: str
    other: float
    unit: str
    ratio: float  # ours to the peer's
    goal: float
    reached: bool
    limit: float | None = None  # tokens/s that no server exceeds with prompts in steps of their own
    mixed: float | None = None  # and with prompts in the texts' steps
    share: float | None = None  # of `limit` that we reach
    most: float | None = None  # the ratio that nobody can exceed on this machine


def goals(servers: Table, bounds: Bounds | None = None) -> list[Goal]:
    """Return every goal that one model's results allow to be judged, beside `bounds` if they are known."""
    found: list[Goal] = []
    for name, groups, factors in COMPARISONS:
        ours, peers = _of(servers, groups, ours=True), _of(servers, groups, ours=False)
        for workload, factor in factors.items():
            limits = [bounds(group, workload) for group in groups] if bounds else []
            found += _throughput(f"{workload}, {name}", workload, factor, ours, peers, limits)
    for name, groups, factors in COMPARISONS[1:]:
        ours, peers = _of(servers, groups, ours=True), _of(servers, groups, ours=False)
        for workload in factors:
            found += _latency(name, workload, ours, peers)
    return [*found, *_second_runs(_of(servers, tuple(Group), ours=True)), *_memory(servers)]


def _of(servers: Table, groups: tuple[Group, ...], *, ours: bool) -> Table:
    return {
        label: server
        for label, server in servers.items()
        if server["group"] in groups and server["ours"] == ours and server["workloads"]
    }


def _best(servers: Table, workload: str, number: str, choose: Callable[..., str]) -> tuple[str, float] | None:
    """Return the server with the largest or the smallest of a number, and the number."""
    values = {
        label: server["workloads"][workload][number]
        for label, server in servers.items()
        if workload in server["workloads"] and not server["workloads"][workload]["failures"]
    }
    if not values:
        return None
    label = choose(values, key=values.__getitem__)
    return label, values[label]


def _throughput(
    what: str, workload: str, factor: float, ours: Table, peers: Table, limits: list[Bound]
) -> Iterator[Goal]:
    mine = _best(ours, workload, "tokens_per_second", max)
    theirs = _best(peers, workload, "tokens_per_second", max)
    if mine and theirs:
        goal = _goal(what, mine, theirs, "tok/s", factor, at_least=True)
        yield _beside_limit(goal, limits) if limits else goal


def _beside_limit(goal: Goal, limits: list[Bound]) -> Goal:
    """Return the goal with the largest of the limits: those of the kinds of weights that it allows."""
    apart, mixed = max(limit.apart for limit in limits), max(limit.mixed for limit in limits)
    return replace(
        goal,
        limit=float(f"{apart:.4g}"),
        mixed=float(f"{mixed:.4g}"),
        share=round(goal.value / apart, 3),
        most=round(max(apart, mixed) / goal.other, 2),
    )


def _latency(name: str, workload: str, ours: Table, peers: Table) -> Iterator[Goal]:
    """Yield the latencies of our fastest server beside the least of any peer of the group."""
    mine = _best(ours, workload, "tokens_per_second", max)
    for title, number in NO_WORSE:
        theirs = _best(peers, workload, number, min)
        if mine and theirs:
            value = mine[0], ours[mine[0]]["workloads"][workload][number]
            yield _goal(f"{workload}, {name}: {title}", value, theirs, "ms", 1.0, at_least=False)


def _second_runs(ours: Table) -> Iterator[Goal]:
    """Yield how soon the first requests of a second run are answered, whose prefix is known."""
    names = {"again8": "same prefix, new tails", "repeat8": "same prompts"}
    for label, server in ours.items():
        for workload, name in names.items():
            if workload not in server["workloads"] or "prefix8" not in server["workloads"]:
                continue
            first, second = (server["workloads"][run]["first_wave_ttft_ms"] for run in ("prefix8", workload))
            what = f"TTFT of a second run of prefix8, {name}"
            yield _goal(what, (label, second), ("its first run", first), "ms", SECOND_RUN, at_least=False)


def _memory(servers: Table) -> Iterator[Goal]:
    peer = servers.get(MEMORY_PEER, {}).get("peak_mb")
    for label, server in servers.items():
        if peer and server["ours"] and server["workloads"]:
            value = label, server["peak_mb"]
            yield _goal("peak memory", value, (MEMORY_PEER, peer), "MB", 1.0, at_least=False)


def _goal(
    what: str, ours: tuple[str, float], peer: tuple[str, float], unit: str, goal: float, *, at_least: bool
) -> Goal:
    ratio = ours[1] / peer[1]
    return Goal(
        what=what,
        ours=ours[0],
        value=ours[1],
        peer=peer[0],
        other=peer[1],
        unit=unit,
        ratio=round(ratio, 2),
        goal=goal,
        reached=ratio >= goal if at_least else ratio <= goal,
    )
