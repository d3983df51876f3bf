"""The contract's operations as a table: what each takes and gives, read from the document once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
Document = Mapping[str, Any]
# what asks whether the server is ready or alive: no work that could fail
PROBES = frozenset(
    {
        *("root_health", "health", "livez", "readyz", "ping", "vertex_health_route"),
        *("kserve_live", "kserve_ready", "kserve_model_ready", "kserve_model_ready_unversioned"),
    }
)
WATCHING = PROBES | {"metrics"}  # what asks all the time, whether or not anybody asks for work


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of the document."""

    id: str
    method: str  # upper case
    path: str  # as in the document, with {parameters}
    secured: bool
    request_schema: Mapping[str, Any] | None  # of the JSON body; None: takes no body
    responses: Mapping[str, Mapping[str, Any]]  # by status, references resolved


def operation_table(document: Document) -> dict[str, OperationRow]:
    """Return the operations by operationId; raise ValueError where two share one."""
    table: dict[str, OperationRow] = {}
    for row in _rows(document):
        if row.id in table:
            raise ValueError(f"operationId {row.id!r} stands twice in the document")
        table[row.id] = row
    return table


def resolve(document: Document, item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference within the document."""
    while "$ref" in item:
        found: Any = document
        for step in item["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        item = found
    return item


def _rows(document: Document) -> Iterator[OperationRow]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield _row(document, path, method, operation)


def _row(document: Document, path: str, method: str, operation: Mapping[str, Any]) -> OperationRow:
    body = resolve(document, operation.get("requestBody", {}))
    return OperationRow(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        secured=bool(operation.get("security", document.get("security"))),
        request_schema=body["content"]["application/json"]["schema"] if body else None,
        responses={status: resolve(document, item) for status, item in operation["responses"].items()},
    )
