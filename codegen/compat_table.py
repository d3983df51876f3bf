"""openapi/compatibility/: our table of what becomes of each documented member, a file for each document.

The rows are ours: what a document says is told in a few words, and why it is otherwise here. Without the
documents every row is checked to be true of today's contract; with them, also to be what they say, and none
to be missing.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from codegen.compat_rows import ANSWERS, REQUEST, STATUSES, Members, Row, answers, body, ranged, told
from codegen.document import Document
from codegen.shapes import Shapes
from openapi.yamlload import parse

FOLDER = Path(__file__).parents[1] / "openapi/compatibility"
HEAD = """\
# How what {document} documents fares here: see codegen/compat_rows.py for what each word means.
# `python -m codegen compat --write` writes all but the reasons, from the document, and keeps those.
"""
WIDTH = 116


def read(folder: Path = FOLDER) -> list[Row]:
    """Return all rows that are kept."""
    return [row for file in sorted(folder.glob("*.yaml")) for row in _rows(parse(file.read_text("utf-8")))]


def write(rows: Iterable[Row], folder: Path = FOLDER) -> None:
    """Keep rows, with the reasons that they have."""
    folder.mkdir(exist_ok=True)
    for document, found in groupby(rows, key=lambda row: row.document):
        (folder / f"{document}.yaml").write_text("\n".join(_file(document, list(found))) + "\n", "utf-8")


def with_reasons(rows: Iterable[Row], kept: Iterable[Row]) -> Iterator[Row]:
    """Yield rows with the reasons of those that are kept, where both say the same of the same thing."""
    known = {(row.key, row.status): row.reason for row in kept}
    for row in rows:
        yield Row(*row.key, row.status, row.theirs, row.ours, known.get((row.key, row.status), ""))


def wants_reason(row: Row) -> bool:
    """Return whether somebody who uses the document may miss something, or get something else."""
    return row.status not in ("same", "wider" if row.place == REQUEST else "narrower")


def untrue(document: Document, rows: Iterable[Row]) -> Iterator[str]:
    """Yield what rows say of the contract that isn't so, and rows that lack a reason."""
    shapes = Shapes(ranged(document.schemas), loose=True)
    operations = {f"{found.method.upper()} {found.path}": found for found in document.operations()}
    bodies: dict[tuple[str, str], Members | None] = {}
    for row in rows:
        name = f"{row.document}: {row.operation} {row.place} {row.member}".rstrip()
        if wants_reason(row) and not row.reason:
            yield f"{name}: it is {row.status}: say why"
        if not row.place or row.operation not in operations:
            if bool(row.place) or row.operation in operations:
                yield f"{name}: whether the operation is in the contract is told wrongly"
            continue
        if row.place == ANSWERS:
            known = row.member in answers(document, operations[row.operation])
            if known != (row.status == "same"):
                yield f"{name}: it is {row.status} no longer"
            continue
        place = row.operation, row.place
        if place not in bodies:
            schema = body(document, operations[row.operation], row.place)
            bodies[place] = None if schema is None else Members(shapes, schema)
        problem = _problem(row, bodies[place])
        if problem:
            yield f"{name}: {problem}"


def disagreements(rows: Iterable[Row], kept: Iterable[Row]) -> Iterator[str]:
    """Yield where the rows that are kept aren't those that the documents and the contract make."""
    found, known = {row.key: row for row in rows}, {row.key: row for row in kept}
    for key in [*found, *(key for key in known if key not in found)]:
        if found.get(key) != known.get(key):
            yield f"{' '.join(key)}: kept as {_short(known.get(key))}, and found {_short(found.get(key))}"


def _problem(row: Row, members: Members | None) -> str:
    path = tuple(row.member.split("/")) if row.member else ()
    if members is None or not members.holds(path):
        gone = row.status == "absent" or (row.status == "ignored" and not row.ours)
        return "" if gone else "there is no such member in the contract any more"
    if row.status == "absent" or (row.status == "ignored" and path not in members.found):
        return "the contract has it now"
    support = members.told(path).get("x-support", "honoured") if path in members.found else "honoured"
    if row.place == REQUEST and row.status != _by_support(support, row.status):
        return f"it is {support} now, and not {row.status}"
    ours = told(members, path, row.status)
    return "" if ours == row.ours else f"ours is '{ours}' now, and not '{row.ours}'"


def _by_support(support: str, status: str) -> str:
    """Return the status that a request's member has by its support; what only shapes decide stays."""
    if support in ("later", "refused"):
        return "refused"
    if support == "reported":
        return "ignored"
    return "same" if status in ("refused", "ignored") else status


def _short(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return f"{row.status} ({row.theirs or '-'}; ours {row.ours or '-'})"


def _rows(table: Mapping[str, Any]) -> Iterator[Row]:
    for operation, places in table["operations"].items():
        if isinstance(places, str):
            yield Row(table["document"], operation, "", "", "absent", reason=places)
            continue
        for place, statuses in places.items():
            for status, members in statuses.items():
                for member in members:
                    told = members[member] if isinstance(members, Mapping) else {}
                    yield Row(table["document"], operation, place, member, status, **told)


def _file(document: str, rows: list[Row]) -> Iterator[str]:
    yield HEAD.format(document=document)
    yield f"document: {document}"
    yield "operations:"
    for operation, found in groupby(rows, key=lambda row: row.operation):
        of_operation = list(found)
        if not of_operation[0].place:
            yield f"  {operation}: {json.dumps(of_operation[0].reason, ensure_ascii=False)}"
            continue
        yield f"  {operation}:"
        for place, members in groupby(of_operation, key=lambda row: row.place):
            yield f"    {place}:"
            yield from _place(list(members))


def _place(rows: list[Row]) -> Iterator[str]:
    for status in STATUSES:
        found = [row for row in rows if row.status == status]
        if found and status == "same":
            names = ", ".join(json.dumps(row.member) for row in found)
            lines = textwrap.wrap(names, WIDTH, break_long_words=False, break_on_hyphens=False)
            yield f"      {status}: ["
            yield from (f"        {line}" for line in lines)
            yield "      ]"
        elif found:
            yield f"      {status}:"
            yield from (f"        {json.dumps(row.member)}: {_told(row)}" for row in found)


def _told(row: Row) -> str:
    texts = {"theirs": row.theirs, "ours": row.ours, "reason": row.reason}
    return json.dumps({key: text for key, text in texts.items() if text}, ensure_ascii=False)
