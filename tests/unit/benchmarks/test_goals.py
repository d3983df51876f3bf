from __future__ import annotations

from typing import Any

from benchmarks.serving.bounds import Bound
from benchmarks.serving.goals import Goal, goals
from benchmarks.serving.servers import Group


def server(
    group: Group, rate: float, *, ours: bool = False, ttft: float = 100, peak: int = 500
) -> dict[str, Any]:
    numbers = {"tokens_per_second": rate, "ttft_ms": ttft, "itl_p99_ms": 10, "failures": []}
    numbers["first_wave_ttft_ms"] = ttft
    return {"group": group, "ours": ours, "peak_mb": peak, "workloads": {"c1": numbers}}


def found(servers: dict[str, Any], what: str) -> Goal:
    (goal,) = [goal for goal in goals(servers) if goal.what == what]
    return goal


FAST = {
    "parley f32": server(Group.F32, 30, ours=True, ttft=90),
    "parley bf16": server(Group.HALF, 60, ours=True),
    "slow": server(Group.F32, 10, ttft=80),
    "fast": server(Group.F32, 20, ttft=95),
    "half": server(Group.HALF, 50),
    "transformers serve f32": server(Group.F32, 5, peak=900, ttft=200),
}


def test_the_best_of_us_is_held_against_the_best_peer() -> None:
    all_floats = found(FAST, "c1, fp32 or 16 bit")
    assert (all_floats.ours, all_floats.peer, all_floats.ratio, all_floats.reached) == (
        "parley bf16",
        "half",
        1.2,
        False,
    )
    same_kind = found(FAST, "c1, fp32")
    assert (same_kind.ours, same_kind.peer, same_kind.ratio, same_kind.reached) == (
        "parley f32",
        "fast",
        1.5,
        True,
    )


def test_a_throughput_stands_beside_the_largest_limit_of_the_weights_that_it_allows() -> None:
    def bounds(group: Group, workload: str) -> Bound:
        assert workload in ("c1", "c8", "c32", "prefix8")
        return {Group.F32: Bound(40, 80), Group.HALF: Bound(120, 150), Group.INT8: Bound(999, 999)}[group]

    judged = {goal.what: goal for goal in goals(FAST, bounds)}
    found = [(goal.limit, goal.mixed, goal.share, goal.most) for goal in judged.values() if goal.limit]
    # parley bf16 60 beside half 50, parley f32 30 beside fast 20
    assert found == [(120, 150, 0.5, 3.0), (40, 80, 0.75, 4.0), (120, 150, 0.5, 3.0)]
    assert judged["c1, fp32: TTFT, median"].limit is None


def test_a_latency_is_held_against_the_least_of_any_peer() -> None:
    goal = found(FAST, "c1, fp32: TTFT, median")
    assert (goal.peer, goal.value, goal.other, goal.reached) == ("slow", 90, 80, False)
    assert found(FAST, "c1, fp32: ITL, 99th percentile").reached


def test_memory_is_held_against_transformers() -> None:
    judged = [goal for goal in goals(FAST) if goal.what == "peak memory"]
    assert [(goal.ours, goal.reached) for goal in judged] == [("parley f32", True), ("parley bf16", True)]


def test_a_second_run_is_held_against_the_first() -> None:
    ours = server(Group.F32, 30, ours=True)
    first = ours["workloads"]["c1"]
    ours["workloads"] = {
        "prefix8": {**first, "first_wave_ttft_ms": 1000},
        "again8": {**first, "first_wave_ttft_ms": 150},
    }
    goal = found({"parley f32": ours}, "TTFT of a second run of prefix8, same prefix, new tails")
    assert (goal.ratio, goal.reached) == (0.15, True)


def test_what_was_not_measured_or_failed_is_not_judged() -> None:
    failed = server(Group.INT8, 99)
    failed["workloads"]["c1"]["failures"] = ["late"]
    assert goals({"parley int8": server(Group.INT8, 50, ours=True), "peer": failed}) == []
    assert goals({}) == []
