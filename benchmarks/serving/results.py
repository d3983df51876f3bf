"""The committed file of results: medians of each server, and the goals, by model.

What this machine's file has of servers that the records know nothing of stays in it, so that some can be
measured again where the records of the others are gone; each row has its day. Models without a shape any
more are left out.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.limits import Limits
from benchmarks.machine import RESULTS, about, machine
from benchmarks.serving.bounds import PRECISIONS, Bounds, Size, bound
from benchmarks.serving.goals import goals
from benchmarks.serving.models import SHAPES
from benchmarks.serving.records import Key, Record, WorkFile, medians, same_texts
from benchmarks.serving.servers import SERVERS, Group, Server
from benchmarks.serving.workloads import WORKLOADS

REFERENCES = ("transformers serve f32", "llama.cpp f32", "vLLM f32")  # whose texts are compared with


def write_results(work: WorkFile, folder: Path, repetitions: int) -> None:
    """Write results/serving-MACHINE.json from what has been measured."""
    path = RESULTS / f"serving-{machine()}.json"
    before: Record = json.loads(path.read_text()) if path.exists() else {"models": {}, "versions": {}}
    asked = {key.model for key in work.servers()} | set(before["models"])
    for model in before["models"].values():  # the file's own day will be today
        for row in model["servers"].values():
            row.setdefault("day", before.get("day"))
    models = {
        model: _model(work, model, before["models"].get(model, {}), repetitions)
        for model in SHAPES
        if model in asked
    }
    measured = {label for model in models.values() for label in model["servers"]}
    versions = {
        server.label: _version(server, folder) or before["versions"].get(server.label, "")
        for server in SERVERS
        if server.label in measured
    }
    written = {
        **about(),
        "workloads": {name: asdict(workload) for name, workload in WORKLOADS.items()},
        "versions": {label: version for label, version in versions.items() if version},
        "models": models,
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(written, indent=1) + "\n")


def _model(work: WorkFile, model: str, before: Record, repetitions: int) -> Record:
    """Return all that is known with one model; `before`: the same as the file has it, {} without."""
    known = before.get("servers", {})
    rows = {
        server.label: _server(work, Key(model, server.label), server, repetitions)
        or known.get(server.label, {})
        for server in SERVERS
    }
    for label, row in rows.items():  # of records that don't say their day, the file may
        if row:
            row["day"] = row["day"] or known.get(label, {}).get("day") or time.strftime("%Y-%m-%d")
    servers = {label: row for label, row in rows.items() if row}
    limits = _limits(work, model) or (Limits(**before["limits"]) if before.get("limits") else None)
    return {
        "limits": {name: float(f"{value:.4g}") for name, value in asdict(limits).items()} if limits else None,
        "servers": servers,
        "goals": [asdict(goal) for goal in goals(servers, _bounds(model, limits) if limits else None)],
    }


def _limits(work: WorkFile, model: str) -> Limits | None:
    """Return the largest limits that were found beside our servers; None if none were."""
    found = [Limits(**limits) for limits in work.limits(model)]
    return functools.reduce(Limits.larger, found) if found else None


def _bounds(model: str, limits: Limits) -> Bounds:
    size = Size.of(SHAPES[model])
    return lambda group, workload: bound(size, PRECISIONS[Group(group)], WORKLOADS[workload], limits)


def _server(work: WorkFile, key: Key, server: Server, repetitions: int) -> Record:
    """Return what is known of one server with one model; {} if it was never asked for."""
    if key not in work.servers():
        return {}
    start = work.last(key, "start") or {}
    workloads: dict[str, Any] = {}
    for name in WORKLOADS:
        results = work.results(key, name)
        if not results:
            continue
        workloads[name] = medians(results, repetitions)
        reference = next(
            (found for label in REFERENCES if (found := work.results(Key(key.model, label), name))), []
        )
        if (share := same_texts(results, reference)) is not None:
            workloads[name]["same_texts"] = share
    peaks = [start.get("peak_mb", 0.0), *(workload["peak_mb"] for workload in workloads.values())]
    return {
        "ours": server.ours,
        "group": server.group.value,
        "day": work.day(key),
        "start_seconds": round(start["seconds"], 1) if start else None,
        "peak_mb": round(max(peaks)),
        "workloads": workloads,
        "failed": None if workloads else work.last(key, "failed"),
    }


def _version(server: Server, folder: Path) -> str:
    """Return a peer's version, as it tells it; "" for our own."""
    if not server.version or not (folder / server.version[0]).exists():
        return ""
    program, argument = str(folder / server.version[0]), server.version[1]
    command = [program, argument]
    if "python" in program:
        command = [program, "-c", f"from importlib.metadata import version; print(version({argument!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return next((line for line in lines if line.startswith("version")), lines[-1] if lines else "")
