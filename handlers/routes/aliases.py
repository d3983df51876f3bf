"""Routes that are settings: Vertex AI tells a container by variables where it will call.

They join the contract when the server starts, as further addresses of operations that the document has, so
that they are routed, secured, checked and shown like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

import openapi
from handlers.http.call import Operation
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings

Document = dict[str, Any]
Operations = Mapping[str, Operation[Any, Response]]


@dataclass(frozen=True, slots=True)
class Alias:
    """One more address of an operation."""

    variable: str
    method: str
    target: str  # the path in the document that answers the same
    alike: frozenset[str]  # operationIds that answer the same, too
    operation_id: str

    def is_there(self, document: Document, path: str) -> bool:
        """Return whether the document has the address, for the same; raise SettingsError if for another."""
        taken = document["paths"].get(path, {}).get(self.method)
        if taken is not None and taken["operationId"] not in self.alike:
            raise SettingsError(
                f"{self.variable}={path} is the address of something else: choose another, as {self.target}"
            )
        return taken is not None


PREDICT = Alias(
    "AIP_PREDICT_ROUTE", "post", "/vertex", frozenset({"vertex_compatibility"}), "vertex_predict_route"
)
HEALTH = Alias(
    "AIP_HEALTH_ROUTE", "get", "/health", frozenset({"health", "ping", "root_health"}), "vertex_health_route"
)


def check(settings: Settings) -> None:
    """Raise SettingsError for an address where something else answers."""
    for alias, path in _given(settings):
        alias.is_there(openapi.load(), path)


def with_aliases(
    document: Document, operations: Operations, settings: Settings
) -> tuple[Document, Operations]:
    """Return document and operations with the addresses that the settings add; the document given is changed.

    Raises SettingsError for an address where something else answers.
    """
    answers = dict(operations)
    for alias, path in _given(settings):
        if alias.is_there(document, path):
            continue
        same = document["paths"][alias.target][alias.method]
        if path not in document["paths"]:  # in front: those with parameters would take it for one of theirs
            document["paths"] = {path: {}, **document["paths"]}
        document["paths"][path][alias.method] = same | {"operationId": alias.operation_id}
        answers[alias.operation_id] = operations[same["operationId"]]
    return document, answers


def _given(settings: Settings) -> list[tuple[Alias, str]]:
    both = ((PREDICT, settings.aip_predict_route), (HEALTH, settings.aip_health_route))
    return [(alias, path) for alias, path in both if path is not None]
