"""What the generated pages are made of: links and their anchors, tables, JSON for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

WIDTH = 100  # of JSON, in characters


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(text: str, heading: str | None = None) -> str:
    """Return a link to a heading of the same page."""
    return f"[{text}](#{anchor(heading or text)})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, and an empty one; nothing without rows."""
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    if lines:
        yield from (f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines, "")


def first_paragraph(text: str) -> str:
    """Return a description's first paragraph on one line."""
    return " ".join(text.strip().partition("\n\n")[0].split())


def further_paragraphs(text: str) -> str:
    """Return what follows the first paragraph as it was written."""
    return text.strip().partition("\n\n")[2]


def pretty(value: Any, indent: int = 0) -> str:
    """Return JSON with as much on a line as fits."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or indent + len(flat) <= WIDTH:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, list):
        items = [pad + pretty(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
    names = [json.dumps(name, ensure_ascii=False) + ": " for name in value]
    members = [
        pad + name + pretty(item, indent + 2) for name, item in zip(names, value.values(), strict=True)
    ]
    return "{\n" + ",\n".join(members) + "\n" + " " * indent + "}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
