"""What becomes of each member of each request, as a table: what `x-support` says, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator

from codegen.document import Document, Node

HEADINGS = ("member", "support", "neutral values", "why not, and what not")


def tables(document: Document) -> Iterator[str]:
    """Yield Markdown, one table for each schema that a request body reaches."""
    for name in document.request_schemas():
        members = document.schemas[name].get("properties", {})
        if members:
            rows = [
                HEADINGS,
                ("---",) * len(HEADINGS),
                *(_row(document, key, members[key]) for key in members),
            ]
            yield f"### {name}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(document: Document, name: str, member: Node) -> tuple[str, ...]:
    told = _told(document, member)
    neutral = ", ".join(f"`{json.dumps(value)}`" for value in told.get("x-neutral", ()))
    idle = ", ".join(f"`{below}`" for below in told.get("x-without-effect", ()))
    reason = told.get("x-reason", f"no effect here: {idle}" if idle else "")
    return f"`{name}`", told["x-support"], neutral, reason


def _told(document: Document, member: Node) -> Node:
    return {**document.resolve(member), **member}
