"""Measure servers beside each other over HTTP, and write what came out.

    python -m benchmarks.serving --peers FOLDER [--models llama-135m qwen2-0.5b] [--only REGEX] [--quick]

One server runs at a time, with a load client beside it, on the same random weights and the same prompts.
Everything measured is a line of FOLDER/results/serving.jsonl: what is there isn't measured again, so that
servers can be measured one by one; `--redo` forgets the selected ones first. From all of it then
benchmarks/results/serving-MACHINE.json and docs/benchmarks.md are written. `--list` says what has to be
installed in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.serving.models import SHAPES, ensure_models
from benchmarks.serving.processes import wait_until_quiet
from benchmarks.serving.records import Key, Record, WorkFile, clean, summarise
from benchmarks.serving.results import write_results
from benchmarks.serving.running import Running, ServerFailed, running
from benchmarks.serving.servers import ROOT, SERVERS, Server
from benchmarks.serving.workloads import WORKLOADS, Words, Workload, quick

FIRST = next(iter(SHAPES))  # the model that every server is measured on
LONG_SECONDS = 40.0  # a repetition that takes longer is done twice at most


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call is to measure."""

    folder: Path
    models: list[str]
    servers: list[Server]
    workloads: list[Workload]
    repetitions: int
    spare: int  # more of them, where some were disturbed
    rounds: int
    budget: float  # seconds of each server with each model, its start not counted
    patience: float  # seconds to wait for a quiet machine
    limits: Callable[[], Record] | None = None  # what measures the machine's, beside our own servers

    def items(self) -> Iterator[tuple[Key, Server, list[Workload]]]:
        """Yield each server with each model, and its workloads."""
        for model in self.models:
            for server in self.servers:
                names = server.workloads if model == FIRST else server.larger
                if workloads := [workload for workload in self.workloads if workload.name in names]:
                    yield Key(model, server.label), server, workloads


def main() -> None:
    """Measure what is missing and write everything down."""
    arguments = _arguments()
    if arguments.list:
        for server in SERVERS:
            print(f"{server.label:<24} {server.install or 'this repository'}\n    {server.command}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and end the server first
    plan, work = _plan(arguments), WorkFile(arguments.work or arguments.peers / "results/serving.jsonl")
    if not arguments.report:
        ensure_models(plan.folder, plan.models)
        if arguments.redo:
            for key, _, _ in plan.items():
                work.add(key, forgotten=True)
        measure(plan, work)
    if not arguments.quick:
        write_results(work, plan.folder, plan.repetitions)
        report.write()


def measure(plan: Plan, work: WorkFile) -> None:
    """Measure every server; in several rounds each gets a part of its repetitions in each."""
    for turn in range(1, plan.rounds + 1):
        target = math.ceil(plan.repetitions * turn / plan.rounds)
        for key, server, workloads in plan.items():
            wanted = min(target, 1) if server.once else target
            if missing := server.missing(key.model, plan.folder):
                work.add(key, failed=f"missing: {', '.join(missing)}")
                print(f"{key.server}, {key.model}: missing {missing[0]}")
                continue
            if all(_enough(plan, work, key, workload, wanted) for workload in workloads):
                continue
            try:
                _measure_server(plan, work, key, server, workloads, wanted)
            except ServerFailed as error:
                work.add(key, failed=str(error))
                print(f"{key.server}, {key.model}: {error}", flush=True)


def _measure_server(
    plan: Plan, work: WorkFile, key: Key, server: Server, workloads: list[Workload], target: int
) -> None:
    quiet = wait_until_quiet(plan.patience)
    print(
        f"{time.strftime('%H:%M:%S')} {key.server}, {key.model}{'' if quiet else ' (not quiet)'}", flush=True
    )
    words = Words(plan.folder / "models" / key.model)
    log = plan.folder / "logs" / re.sub(r"[^a-z0-9]+", "-", f"{key.server} {key.model}.log".lower())
    log.parent.mkdir(exist_ok=True)
    if server.ours and plan.limits:
        work.add(key, limits=plan.limits())
    with running(server, key.model, plan.folder, log) as process:
        work.add(key, start={"seconds": process.start_seconds, "peak_mb": process.watch.take_peak()})
        for workload in workloads:
            process.warm_up(words, workload)
        until = time.monotonic() + plan.budget
        while todo := _todo(plan, work, key, workloads, target, until - time.monotonic()):
            _repeat(plan, work, key, process, todo, words)
    if server.ours and plan.limits:
        work.add(key, limits=plan.limits())


def _repeat(
    plan: Plan, work: WorkFile, key: Key, process: Running, workloads: list[Workload], words: Words
) -> None:
    """Run each workload once."""
    repetition = work.next_repetition(key)
    for workload in workloads:
        wait_until_quiet(plan.patience / 4, process.pid)
        result = summarise(
            workload, repetition, process.measure(workload, words.prompts(workload, repetition))
        )
        work.add(key, workload=workload.name, result=result)
        print(
            f"    {workload.name:<8}{result['tokens_per_second']:8.1f} tok/s, "
            f"TTFT {result['ttft_ms']:6.0f} ms, ITL p99 {result['itl_p99_ms']:6.0f} ms, "
            f"{result['peak_mb']:6.0f} MB, client {result['client_cores']:.2f}, "
            f"others {result['other_share']:.2f} cores {result['failures'] or ''}",
            flush=True,
        )
        if not result["requests"]:
            raise ServerFailed(f"{workload.name}: {result['failures']}")


def _todo(
    plan: Plan, work: WorkFile, key: Key, workloads: list[Workload], target: int, seconds_left: float
) -> list[Workload]:
    """Return what is to be repeated once more: what hasn't been measured yet, and what there is time for."""
    todo = []
    for workload in workloads:
        results = work.results(key, workload.name)
        if _enough(plan, work, key, workload, target):
            continue
        if not results or results[-1]["seconds"] < seconds_left:
            todo.append(workload)
            seconds_left -= results[-1]["seconds"] if results else 0.0
    names = {workload.name for workload in todo}
    return [workload for workload in todo if not workload.prefix_of or workload.prefix_of in names]


def _enough(plan: Plan, work: WorkFile, key: Key, workload: Workload, target: int) -> bool:
    results = work.results(key, workload.name)
    if results and results[-1]["seconds"] > LONG_SECONDS:
        target = min(target, 2)
    return len(clean(results)) >= target or len(results) >= target + plan.spare


def _limits() -> Record:
    """Return the machine's limits, found in a process of its own, whose memory and threads then are gone."""
    command = [sys.executable, "-m", "benchmarks.limits"]
    found: Record = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    return found


def _plan(arguments: argparse.Namespace) -> Plan:
    workloads = [WORKLOADS[name] for name in arguments.workloads]
    return Plan(
        folder=arguments.peers.resolve(),
        models=arguments.models,
        servers=[server for server in SERVERS if re.search(arguments.only, server.label)],
        workloads=[quick(workload) for workload in workloads] if arguments.quick else workloads,
        repetitions=1 if arguments.quick else arguments.reps,
        spare=0 if arguments.quick else 2,
        rounds=arguments.rounds,
        budget=arguments.budget,
        patience=2.0 if arguments.quick else arguments.patience,
        limits=None if arguments.quick else _limits,
    )


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.serving", description=__doc__, formatter_class=formatter
    )
    parser.add_argument(
        "--peers", type=Path, required=True, help="folder of the peers, their models and logs"
    )
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--only", default=".", help="expression for the servers to measure")
    parser.add_argument("--reps", type=int, default=3, help="repetitions, of which the median counts")
    parser.add_argument("--rounds", type=int, default=1, help="how often to go round all servers meanwhile")
    parser.add_argument("--budget", type=float, default=100, help="seconds for a server with a model")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--work", type=Path, help="records; FOLDER/results/serving.jsonl")
    parser.add_argument(
        "--redo", action="store_true", help="forget what was measured of the selected servers"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, write what is known")
    parser.add_argument("--quick", action="store_true", help="few requests, once; nothing is written")
    parser.add_argument("--list", action="store_true", help="say what the servers need and how they start")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.work:
        arguments.work = arguments.peers / f"results/quick-{time.strftime('%H%M%S')}.jsonl"
    return arguments


if __name__ == "__main__":
    main()
