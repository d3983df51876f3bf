"""Measure what an optimisation gives: two servers of Parley, one with it switched off, asked in turn.

    python -m benchmarks.switches --folder FOLDER [--off '--prefault-cache false'] [--servers LABEL ...]

Both run at once, and one rests while the other is asked over HTTP, so that a machine whose minutes differ
does no harm. Both begin with an empty cache. FOLDER gets the model, if it isn't there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.machine import RESULTS, about, machine
from benchmarks.report import write as write_report
from benchmarks.serving.models import SHAPES, make_model
from benchmarks.serving.records import percentile
from benchmarks.serving.running import Running, running
from benchmarks.serving.servers import SERVERS, Server
from benchmarks.serving.workloads import WORKLOADS, Words, Workload

REST_SECONDS = 1.0  # before each round, so that nobody is measured while the other still ends something
OURS = {server.label: server for server in SERVERS if server.ours}


@dataclass(frozen=True, slots=True)
class Round:
    """What one server did in one round of a workload."""

    rate: float  # output tokens/s
    first_ms: float  # time to first token, median
    gap_ms: float  # between tokens, 99th percentile


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of all rounds; the ratio is that of each round's two rates."""

    off: str  # flags
    model: str
    server: str
    workload: str
    rounds: int
    ratio: float  # of rates, on to off
    with_it: Round
    without: Round


def main() -> None:
    """Measure, write the results down, and what is known into docs/benchmarks.md."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--off", default="--prefault-cache false", help="flags that switch something off")
    parser.add_argument("--model", default="llama-135m", choices=SHAPES)
    both = ["parley f32", "parley bf16 --dtype bfloat16"]
    parser.add_argument("--servers", nargs="+", default=both, choices=OURS)
    parser.add_argument("--workloads", nargs="+", default=["c8", "prefix8"], choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if not (folder / "models" / arguments.model / "words.json").exists():
        make_model(folder / "models", arguments.model)
    rows = [
        row
        for label in arguments.servers
        for row in compare(
            OURS[label], arguments.off, arguments.model, folder, arguments.workloads, arguments.rounds
        )
    ]
    write(rows)
    write_report()


def compare(
    server: Server, off: str, model: str, folder: Path, workloads: Sequence[str], rounds: int
) -> Iterator[Row]:
    """Yield what each workload shows of a server with and without more flags; raise ServerFailed."""
    words = Words(folder / "models" / model)
    without = replace(server, command=f"{server.command} {off}")
    with ExitStack() as stack:
        both = [
            stack.enter_context(running(each, model, folder, folder / f"switches-{number}-log"))
            for number, each in enumerate((server, without))
        ]
        for each in both:
            each.warm_up(words, WORKLOADS[workloads[0]])
        for name in workloads:
            row = _row(_in_turn(both, WORKLOADS[name], words, rounds), off, model, server.label, name)
            rates = f"{row.with_it.rate:.0f}/{row.without.rate:.0f} tok/s"
            print(f"{row.server}, {name}: x{row.ratio:.2f} ({rates})")
            yield row


def _in_turn(both: list[Running], workload: Workload, words: Words, rounds: int) -> list[tuple[Round, Round]]:
    """Return what both did in each round, in the first of which the first begins, then the second."""
    found = []
    for number in range(rounds):
        prompts = words.prompts(workload, number)
        order = (0, 1) if number % 2 == 0 else (1, 0)
        one, other = (_ask(both[each], workload, prompts) for each in order)
        found.append((one, other) if order == (0, 1) else (other, one))
    return found


def _ask(server: Running, workload: Workload, prompts: list[str]) -> Round:
    time.sleep(REST_SECONDS)
    answer = server.measure(workload, prompts)
    if answer["failures"]:
        raise RuntimeError(f"{server.server.label} failed: {answer['failures'][0]}")
    firsts = [1e3 * each["first"] for each in answer["answers"]]
    gaps = [1e3 * gap for each in answer["answers"] for gap in each["gaps"]]
    return Round(workload.tokens / answer["wall"], percentile(firsts, 0.5), percentile(gaps, 0.99))


def _row(found: list[tuple[Round, Round]], off: str, model: str, server: str, workload: str) -> Row:
    ratio = statistics.median(one.rate / other.rate for one, other in found)
    with_it, without = (_median(each) for each in zip(*found, strict=True))
    return Row(off, model, server, workload, len(found), round(ratio, 3), with_it, without)


def _median(rounds: Sequence[Round]) -> Round:
    columns = zip(*((each.rate, each.first_ms, each.gap_ms) for each in rounds), strict=True)
    rate, first, gap = (round(statistics.median(column), 1) for column in columns)
    return Round(rate, first, gap)


def write(rows: list[Row]) -> None:
    """Write results/switches-MACHINE.json; what it has of other switches, models and servers stays."""
    path = RESULTS / f"switches-{machine()}.json"
    day = about()["day"]
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    new = [{**asdict(row), "day": day} for row in rows]
    replaced = {_key(row) for row in new}
    kept = [row for row in known if _key(row) not in replaced]
    path.write_text(json.dumps({**about(), "rows": [*kept, *new]}, indent=1) + "\n")


def _key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("off", "model", "server", "workload"))


if __name__ == "__main__":
    main()
