"""Tables of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]


def table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "| --- |" + " --: |" * (len(header) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
