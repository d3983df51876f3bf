"""Which operation the gateway takes a request for."""

from __future__ import annotations

import pytest

import openapi
from handlers.fleet.paths import Paths
from handlers.http.operations import PROBES, OperationRow, operation_table
from handlers.settings.table import Settings

ROWS = operation_table(openapi.load()).values()
PATHS = Paths(Settings(aip_predict_route="/predict", aip_health_route="/alive"))


def operation(method: str, path: str) -> str:
    return PATHS.operation({"method": method, "path": path})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_operation_of_the_contract_is_found(row: OperationRow) -> None:
    path = row.path.format(name="ready", version="infer", model="org/model")
    assert row.id == operation(row.method, path)
    assert operation("HEAD", path) == (row.id if row.method == "GET" else operation("GET", path))


def test_an_address_of_the_settings_is_found() -> None:
    assert "vertex_predict_route" == operation("POST", "/predict")
    assert "vertex_health_route" == operation("GET", "/alive")
    assert {operation("GET", path) for path in ("/alive", "/health", "/", "/v2/models/m/ready")} <= PROBES


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("POST", "/health"), ("GET", "")])
def test_what_the_contract_does_not_have_has_none(method: str, path: str) -> None:
    assert "" == operation(method, path)
