"""Vertex AI's addresses in the contract."""

from __future__ import annotations

import pytest

import openapi
from handlers import cli
from handlers.routes.aliases import with_aliases
from handlers.routes.health import health
from handlers.routes.operations import OPERATIONS
from handlers.routes.vertex import vertex_compatibility
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings


def test_the_addresses_join_the_contract_as_operations_of_their_own() -> None:
    settings = Settings(aip_predict_route="/v1/x:predict", aip_health_route="/v1/x")
    document, operations = with_aliases(openapi.load(), OPERATIONS, settings)
    paths = document["paths"]
    assert operations["vertex_predict_route"] is vertex_compatibility
    assert operations["vertex_health_route"] is health
    assert paths["/v1/x:predict"]["post"] == paths["/vertex"]["post"] | {
        "operationId": "vertex_predict_route"
    }
    assert paths["/v1/x"]["get"]["security"] == []


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(aip_predict_route="/vertex", aip_health_route="/health"),
        Settings(aip_health_route="/ping"),
        Settings(aip_health_route="/"),
    ],
)
def test_addresses_that_are_there_already_add_nothing(settings: Settings) -> None:
    assert with_aliases(openapi.load(), OPERATIONS, settings) == (openapi.load(), OPERATIONS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(aip_predict_route="/generate"), "^AIP_PREDICT_ROUTE=/generate is the address of something"),
        (Settings(aip_health_route="/info"), "^AIP_HEALTH_ROUTE=/info is the address of something"),
    ],
)
def test_the_address_of_something_else_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        with_aliases(openapi.load(), OPERATIONS, settings)


@pytest.mark.parametrize("command", ["serve", "check", "env"])
def test_so_it_is_by_whatever_reads_the_settings(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/generate")
    assert 2 == cli.main([command])
    told = (
        "parley: AIP_PREDICT_ROUTE=/generate is the address of something else: choose another, as /vertex\n"
    )
    assert told == capsys.readouterr().err


def test_one_address_can_do_both() -> None:
    settings = Settings(aip_predict_route="/ai", aip_health_route="/ai")
    document, _ = with_aliases(openapi.load(), OPERATIONS, settings)
    assert {"get", "post"} == document["paths"]["/ai"].keys()


def test_addresses_below_one_with_a_parameter_come_before_it() -> None:
    settings = Settings(aip_predict_route="/v2/models/m/infer", aip_health_route="/v1/models/m")
    document, _ = with_aliases(openapi.load(), OPERATIONS, settings)
    paths = list(document["paths"])
    assert paths.index("/v2/models/m/infer") < paths.index("/v2/models/{name}/infer")
    assert paths.index("/v1/models/m") < paths.index("/v1/models/{model}")
