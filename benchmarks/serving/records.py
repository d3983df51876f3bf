"""What was measured: a JSON line for each repetition, written at once, so that none is measured twice."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.workloads import Workload

DISTURBED = 0.1  # of a core, used by processes that have no part in it
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One server with one model."""

    model: str
    server: str


class WorkFile:
    """The records so far; a later line about the same thing counts, an earlier one stays in the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[tuple[Key, Record]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def add(self, key: Key, **record: Any) -> None:
        """Note something: a `result` of a `workload`, a `start`, a `failed`, `limits`, or `forgotten`."""
        day = time.strftime("%Y-%m-%d")
        line = {"model": key.model, "server": key.server, "day": day, **record}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._take(line)

    def servers(self) -> list[Key]:
        """Return what there are records of, in order."""
        return list(dict.fromkeys(key for key, _ in self._records))

    def last(self, key: Key, kind: str) -> Any:
        """Return the latest `start` or `failed` of a server; None without one."""
        found = [record[kind] for known, record in self._records if known == key and kind in record]
        return found[-1] if found else None

    def limits(self, model: str) -> list[Record]:
        """Return the machine's limits, found before and after each of our servers with a model."""
        return [
            record["limits"] for key, record in self._records if key.model == model and "limits" in record
        ]

    def results(self, key: Key, workload: str) -> list[Record]:
        """Return the repetitions of a workload, in order."""
        records = [record for known, record in self._records if known == key]
        return [record["result"] for record in records if record.get("workload") == workload]

    def next_repetition(self, key: Key) -> int:
        """Return a number that no repetition of any workload of a server has: its prompts are new to that."""
        mine = [
            record["result"]["repetition"]
            for known, record in self._records
            if known == key and "result" in record
        ]
        return max(mine, default=-1) + 1

    def day(self, key: Key) -> str | None:
        """Return when a workload of a server was measured last; None where the records don't say."""
        mine = [record for known, record in self._records if known == key and "workload" in record]
        days = [record["day"] for record in mine if "day" in record]
        return days[-1] if days else None

    def _take(self, line: Record) -> None:
        key = Key(line["model"], line["server"])
        if "forgotten" in line:
            self._records = [known for known in self._records if known[0] != key]
        else:
            self._records.append((key, line))


def summarise(workload: Workload, repetition: int, raw: Record) -> Record:
    """Return the numbers of one repetition; those in `_ms` are milliseconds."""
    answers = raw["answers"]
    firsts = [1e3 * answer["first"] for answer in answers]
    gaps = [1e3 * gap for answer in answers for gap in answer["gaps"]]
    wall = raw["wall"]
    return {
        "repetition": repetition,
        "requests": len(answers),
        "failures": raw["failures"] + _wrong_prompts(workload, answers),
        "seconds": wall,
        "tokens_per_second": sum(answer["tokens"] for answer in answers) / wall,
        "ttft_ms": percentile(firsts, 0.5),
        "ttft_p99_ms": percentile(firsts, 0.99),
        "first_wave_ttft_ms": percentile(firsts[: workload.clients], 0.5),
        "itl_ms": percentile(gaps, 0.5),
        "itl_p99_ms": percentile(gaps, 0.99),
        "tokens_per_piece": sum(answer["tokens"] for answer in answers) / max(1, len(gaps) + len(answers)),
        "peak_mb": raw["peak_mb"],
        "pss_mb": raw["pss_mb"],
        "server_cores": raw["server_cpu"] / wall,
        "client_cores": raw["cpu"] / wall,
        "other_share": raw["other_share"],
        "stolen_share": raw["stolen_share"],
        "texts": [answer["text"] for answer in answers],
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all is not above; NaN of none."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else float("nan")


def clean(results: Iterable[Record]) -> list[Record]:
    """Return the repetitions that nobody disturbed."""
    return [result for result in results if result["other_share"] <= DISTURBED and not result["failures"]]


def medians(results: list[Record], repetitions: int) -> Record:
    """Return the median of each number over the repetitions that were disturbed least."""
    chosen = sorted(results, key=lambda result: max(DISTURBED, result["other_share"]))[:repetitions]
    numbers = [name for name, value in chosen[0].items() if isinstance(value, int | float)]
    found: Record = {name: _rounded(statistics.median(result[name] for result in chosen)) for name in numbers}
    rates = [result["tokens_per_second"] for result in chosen]
    found.update(
        repetitions=len(chosen),
        disturbed=len(chosen) - len(clean(chosen)),
        rates=[_rounded(rate) for rate in rates],
        failures=sorted({failure for result in chosen for failure in result["failures"]}),
    )
    del found["repetition"]
    return found


def same_texts(results: list[Record], reference: list[Record]) -> float | None:
    """Return the share of answers that are the reference's, over the repetitions that both have had."""
    theirs = {result["repetition"]: result["texts"] for result in reference}
    pairs = [
        (text, other)
        for result in results
        for text, other in zip(result["texts"], theirs.get(result["repetition"], []), strict=False)
    ]
    return round(statistics.fmean(text == other for text, other in pairs), 3) if pairs else None


def _wrong_prompts(workload: Workload, answers: list[Record]) -> list[str]:
    counts = {answer["prompt_tokens"] for answer in answers} - {None, *workload.prompts}
    return [f"prompts of {sorted(counts)} tokens in place of {sorted(workload.prompts)}"] if counts else []


def _rounded(number: float) -> float:
    """Return four digits of it."""
    return float(f"{number:.4g}")
