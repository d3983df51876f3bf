"""The application's life: built with its errors, open while it loads, drained in the end."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from connexion.exceptions import InvalidSpecification

import openapi
from handlers.app import create_app
from handlers.http.contract import contract_app
from handlers.http.operations import operation_table
from handlers.http.server import server_config
from handlers.http.validation import request_check
from handlers.routes.operations import OPERATIONS
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.types import EngineState, ModelInfo
from tests.support import error_of, live_server, make_service, serving


def test_an_operation_without_a_handler_is_found_when_the_application_is_made() -> None:
    some = {name: function for name, function in OPERATIONS.items() if name != "generate"}
    with pytest.raises(ValueError, match=r"without a handler \['generate'\]"):
        create_app(make_service(), operations=some)


def test_a_handler_without_an_operation_is_found_when_the_application_is_made() -> None:
    with pytest.raises(ValueError, match=r"not in the document \['forgotten'\]"):
        create_app(make_service(), operations={**OPERATIONS, "forgotten": OPERATIONS["generate"]})


def test_a_bad_document_is_found_when_the_application_is_made() -> None:
    document = copy.deepcopy(openapi.load())
    document["paths"]["/generate"]["post"]["responses"] = "none"
    with pytest.raises((InvalidSpecification, AttributeError)):
        contract_app(document, OPERATIONS, make_service(), beside=None, lifespan=None)  # type: ignore[arg-type]


def test_the_contract_is_read_once_and_each_body_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = openapi.load
    loads, checks = Mock(side_effect=load), Mock(side_effect=request_check)
    monkeypatch.setattr(openapi, "load", loads)
    monkeypatch.setattr("handlers.http.contract.request_check", checks)
    create_app(make_service(validate_responses=False))
    bodies = [row for row in operation_table(load()).values() if row.request_schema is not None]
    assert (loads.call_count, checks.call_count) == (1, len(bodies))


def test_while_the_model_loads_the_port_is_open_and_inference_is_503(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()
    service = make_service()
    core = service.engine._core
    load = core.load

    def load_when_told(progress: Callable[[str], None]) -> ModelInfo:
        progress("Downloading org/name: 3.2 GB of 16.1 GB, 240.0 MB/s")
        loaded.wait(20)
        return load(progress)

    monkeypatch.setattr(core, "load", load_when_told)

    async def check() -> None:
        async with serving(create_app(service)) as client:
            while b"16.1" not in (why := await client.get("/readyz")).content:
                assert why.status_code == 503
                await asyncio.sleep(0.005)
            told = "The model is loading: Downloading org/name: 3.2 GB of 16.1 GB, 240.0 MB/s"
            assert error_of(why) == {"error": told, "error_type": "not_ready"}
            refused = await client.post("/generate", json={"inputs": "Hi"})
            assert refused.status_code == 503
            assert error_of(refused) == {"error": "The model is loading", "error_type": "not_ready"}
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/openapi.json")).status_code == 200
            loaded.set()
            while (await client.get("/health")).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert (await client.post("/generate", json={"inputs": "Hi"})).status_code == 200

    with caplog.at_level(logging.INFO, logger="parley"):
        asyncio.run(check())
    assert "Connected" in [record.getMessage() for record in caplog.records]


def test_a_model_that_cannot_be_loaded_is_told_and_inference_stays_503(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(validate_responses=True)
    service = make_service(
        settings, fake_client(settings.engine_config(), unavailable="no such model: give another")
    )

    async def check() -> None:
        async with serving(create_app(service), service) as client:
            assert (await client.post("/generate", json={"inputs": "Hi"})).status_code == 503
            assert (await client.get("/info")).status_code == 503

    asyncio.run(check())
    assert "no such model: give another" in caplog.messages
    assert service.engine.state is EngineState.FAILED


def test_whoever_runs_the_server_can_be_told_why_there_is_no_model(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(validate_responses=True)
    service = make_service(settings, fake_client(settings.engine_config(), unavailable="no such model"))
    told: list[str] = []

    async def check() -> None:
        async with serving(create_app(service, on_unavailable=told.append), service):
            pass

    asyncio.run(check())
    assert told == ["no such model"]
    assert "no such model" not in caplog.messages


def test_a_server_that_stops_lets_running_requests_end() -> None:
    settings = Settings(validate_responses=True)
    service = make_service(settings, fake_client(settings.engine_config(), step_seconds=0.02))

    async def check() -> int:
        async with serving(create_app(service), service) as client:
            running = asyncio.create_task(client.post("/generate", json={"inputs": "Hi"}))
            while not (service.engine._running or running.done()):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.005)
            assert not running.done()
        return (await running).status_code

    assert asyncio.run(check()) == 200


def test_the_server_hides_nothing_and_logs_no_access_of_its_own() -> None:
    config = server_config(create_app(make_service()), Settings(hostname="127.0.0.1", port=1234))
    assert (config.host, config.port, config.lifespan) == ("127.0.0.1", 1234, "on")
    assert config.access_log is False


def test_two_servers_can_run_in_one_process() -> None:
    with live_server() as one, live_server() as two:
        assert one.port != two.port
