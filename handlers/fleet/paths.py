"""Which operation of the contract a request is for: the gateway routes nothing, but tells what has failed."""

from __future__ import annotations

import re

from starlette.types import Scope

import openapi
from handlers.http.operations import operation_table
from handlers.routes.aliases import HEALTH, PREDICT
from handlers.settings.table import Settings


class Paths:
    """The contract's operations by method and path, with those that the settings add."""

    def __init__(self, settings: Settings) -> None:
        rows = operation_table(openapi.load()).values()
        self._plain: dict[tuple[str, str | None], str] = {
            ("POST", settings.aip_predict_route): PREDICT.operation_id,
            ("GET", settings.aip_health_route): HEALTH.operation_id,
            **{(row.method, row.path): row.id for row in rows},
        }
        self._named = [
            (row.method, re.compile(re.sub(r"\{\w+\}", ".+", row.path), re.DOTALL), row.id)
            for row in sorted(rows, key=lambda row: -len(row.path))  # of two that fit, the one that says more
            if "{" in row.path
        ]

    def operation(self, scope: Scope) -> str:
        """Return the operationId of a request; "" where the contract has none."""
        method, path = scope["method"], scope["path"]
        method = "GET" if method == "HEAD" else method
        fitting = (id for each, pattern, id in self._named if each == method and pattern.fullmatch(path))
        return self._plain.get((method, path)) or next(fitting, "")
