"""What a fuzzing run found, counted, and as a page of `docs/`."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STATUSES = ("2xx", "4xx", "5xx")
MOST_SHOWN = 30


@dataclass(slots=True)
class Findings:
    """The counts of a run; threads may add to it."""

    cases: Counter[str] = field(default_factory=Counter)  # by operation
    sources: Counter[str] = field(default_factory=Counter)
    statuses: Mapping[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    failures: dict[str, list[str]] = field(default_factory=dict)  # complaint -> what was asked with it
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, operation: str, source: str, status: int, complaints: Iterable[str], asked: str) -> None:
        """Count one case."""
        with self.lock:
            self.cases[operation] += 1
            self.sources[source] += 1
            self.statuses[operation][status] += 1
            for complaint in complaints:
                self.failures.setdefault(f"{operation}: {complaint}", []).append(asked)

    @property
    def failed(self) -> int:
        """Return how many complaints there are."""
        return sum(map(len, self.failures.values()))


INTRODUCTION = """\
# Fuzzing

The server of the embedded model, on the real engine, asked with requests made from the contract: at the
borders of what it says, drawn at random, and crossed from several right ones. Each answer is held against the
contract. Written by the command below, which does the same again, and ends with 1 if anything fails.
"""


def page(findings: Findings, *, command: str, date: str, version: str, checks: Iterable[str]) -> str:
    """Return the report as Markdown."""
    every: Counter[int] = Counter()
    for counted in findings.statuses.values():
        every.update(counted)
    sources = ", ".join(f"{number:,} {source}" for source, number in sorted(findings.sources.items()))
    worst = sum(number for status, number in every.items() if status >= 500)
    lines = [
        INTRODUCTION,
        f"```bash\n{command}\n```\n",
        f"{findings.cases.total():,} cases ({sources}) on {date}, version {version}:",
        f"**{findings.failed} failures**, {worst} answers of 500 or more.\n",
        "| operation | cases | " + " | ".join(STATUSES) + " | statuses |",
        "|---|--:|" + "--:|" * len(STATUSES) + "---|",
        *(_row(f"`{name}`", findings.statuses[name]) for name in sorted(findings.cases)),
        _row("**all**", every) + "\n",
        "What is checked of every answer:\n",
        *(f"* {check}" for check in checks),
    ]
    return "\n".join(lines) + "\n"


def failures(findings: Findings) -> str:
    """Return the failures for a terminal, each with the first request that has it."""
    ordered = sorted(findings.failures.items(), key=lambda item: -len(item[1]))
    shown = [f"{len(asked)} x {complaint}\n    {asked[0]}" for complaint, asked in ordered[:MOST_SHOWN]]
    return "\n".join([*shown, f"{findings.failed} failures in {findings.cases.total()} cases"])


def _row(name: str, counted: Counter[int]) -> str:
    classes: Counter[str] = Counter()
    for status, number in counted.items():
        classes[f"{status // 100}xx"] += number
    told = ", ".join(f"{status}: {number:,}" for status, number in sorted(counted.items()))
    cells = [name, f"{counted.total():,}", *(f"{classes[each]:,}" for each in STATUSES), told]
    return f"| {' | '.join(cells)} |"
