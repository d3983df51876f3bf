"""Sections of docs/benchmarks.md on what was run long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.tables import Row, table


def soak(results: Row) -> Iterator[str]:
    """Yield the section on ten thousand sequences."""
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(results["ended"].items()))
    broken = "; ".join(results["faults"] + results["grown"]) or "none"
    yield from ["", "## Ten thousand sequences", ""]
    yield (
        f"`python -m benchmarks.soak --write`: {results['sequences']:,} sequences of random lengths, "
        f"parameters and grammars on the embedded model, with a cache that is too small, in "
        f"{results['seconds']:.0f} s: {ended}; {results['overloads']:,} times there was no room, "
        f"{results['preempted']:,} were preempted, {results['repeated']:,} asked for again. Promises broken "
        f"(a sequence lost, its events out of order, another text the second time, blocks or slots held in "
        f"the end, books that don't balance, memory or open files grown): {broken}."
    )
    yield from _held(results["held"])


def served(results: Row) -> Iterator[str]:
    """Yield the section on hours with faults."""
    faults = Counter(fault["fault"] for fault in results["faults"])
    ended = dict(results["ended"])
    cut, told = ended.pop("LOST", 0), "; ".join(f"{how}: {count:,}" for how, count in sorted(ended.items()))
    by_fault = sorted(results.get("lost_by_fault", {}).items())
    during = f" ({', '.join(f'{count} during: {name}' for name, count in by_fault)})" if by_fault else ""
    broken = "; ".join(results["unexplained"] + results["grown"]) or "none"
    yield from ["", "## Hours with faults", ""]
    yield (
        f"`python -m benchmarks.soak --hours {results['hours']:g} --faults --write`: a server with two API "
        f"workers, asked over HTTP by clients of every kind, {results['by_kind'].get('invalid', 0):,} times "
        f"for what must fail. Of {results['sent']:,} requests, {told}; cut without an end: {cut}{during}. "
        f"Ends and logged errors that no fault of their time brings about, and memory or files that grew: "
        f"{broken}. The server's exit code was {results['exit_code']}."
    )
    yield ""
    yield "Faults: " + "; ".join(f"{count} times {name}" for name, count in sorted(faults.items())) + "."
    yield from _held(results["held"])


def _held(held: dict[str, Row]) -> Iterator[str]:
    """Yield what processes held, as a table."""
    keys = ("warm_mib", "last_mib", "warm_files", "last_files")
    rows = ([name, *(f"{values[key]:.0f}" for key in keys)] for name, values in held.items())
    yield ""
    yield from table(["process", "MiB when warm", "in the end", "open files when warm", "in the end"], rows)
