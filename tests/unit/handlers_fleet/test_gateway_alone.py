"""What the gateway says and bounds by itself, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers.app import create_app
from handlers.fleet import gateway as module
from handlers.fleet.call import Answer, Route
from handlers.fleet.shares import Share, of_a_replica
from handlers.settings.table import Settings
from tests.support import PATIENCE, make_service, serving
from tests.unit.handlers_fleet.local import (
    CHAT,
    GENERATE,
    Connection,
    LocalFleet,
    answers,
    client_of,
    heard,
    in_front,
    says,
    streams,
)

pytestmark = pytest.mark.anyio


async def test_before_there_are_replicas_clients_are_asked_to_come_again() -> None:
    for fleet in (None, LocalFleet({"one": answers()}, populated=False)):
        async with client_of(fleet) as client:
            response = await client.post("/generate", json=GENERATE)
        assert (response.status_code, response.json()["error_type"]) == (503, "not_ready")
        assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize("fleet", [None, LocalFleet({"one": answers()}, silent=("one",))])
async def test_the_gateway_says_itself_that_it_lives(fleet: LocalFleet | None) -> None:
    gateway, app = in_front(fleet)
    async with serving(app) as client:
        for _ in range(2):
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/v2/health/live")).json() == {"live": True}
            assert (await client.get("/metrics")).status_code == 200
            await gateway.drain(0)


@pytest.mark.parametrize(("silent", "status"), [(("one",), 200), (("one", "two"), 503)])
async def test_a_replica_that_takes_nothing_is_passed_over(
    silent: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.05)
    fleet = LocalFleet({"one": answers(), "two": answers()}, silent=silent)
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert response.status_code == status
    assert [name for name, _ in fleet.asked] == ["one", "two"]
    assert all(call.gone.is_set() for call in fleet.calls)


async def test_a_request_that_no_replica_is_found_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(LocalFleet):
        def ask(self, head: dict[str, Any], body: bytes, route: Route) -> Answer:
            answer = super().ask(head, body, route)
            route.chosen = ""
            return answer

    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.05)
    fleet = Waiting({"one": answers()}, silent=("one",))
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, response.json()["error"]) == (503, "No replica is ready")
    assert int(response.headers["retry-after"]) > 0
    assert len(fleet.asked) == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/generate", "/tokenize", "/nothing"])
async def test_a_body_that_is_too_long_is_refused_by_the_limit_of_the_replicas_model(
    path: str, chunked: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield body
        yield b" " * 1_000

    limits: dict[str, Any] = {
        "payload_limit": 100,
        "image_payload_limit": 1_000,
    }  # and its model sees nothing
    service = make_service(**limits)
    app, body, told = create_app(service), json.dumps({"inputs": "x" * 2_000}).encode(), []
    async with serving(app, service) as direct, client_of(LocalFleet({"one": app}), **limits) as client:
        for each in (direct, client):
            content = pieces() if chunked else body
            told.append(await each.post(path, content=content, headers={"content-type": "application/json"}))
    own, seen = told
    assert own.status_code == seen.status_code == (404 if path == "/nothing" else 413)
    assert path == "/nothing" or "it must have <= 100 bytes." in seen.text
    assert own.json()["error"] == seen.json()["error"]


@pytest.mark.parametrize(
    ("size", "chunked", "received"), [(900, False, 900), (900, True, 900), (2_000, True, 1_200)]
)
async def test_what_was_received_of_a_body_that_is_too_long_is_logged(
    size: int, chunked: bool, received: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one that is read in pieces no more than to the limit; a replica is given its length alone."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 300):
            yield body[start : start + 300]

    limits: dict[str, Any] = {"payload_limit": 100, "image_payload_limit": 1_000}
    service, body = make_service(**limits), json.dumps({"inputs": "x" * (size - 14)}).encode()
    assert len(body) == size
    app = create_app(service)
    with caplog.at_level(logging.INFO, "parley.access"):
        async with serving(app, service), client_of(LocalFleet({"one": app}), **limits) as client:
            kind, content = {"content-type": "application/json"}, pieces() if chunked else body
            assert (await client.post("/generate", content=content, headers=kind)).status_code == 413
    told = [each.received_bytes for each in caplog.records if each.getMessage() == "POST /generate"]  # type: ignore[attr-defined]
    assert told == [received]


async def test_a_body_that_is_too_long_is_passed_on_to_no_replica() -> None:
    fleet = LocalFleet({"one": says(413, "validation")})
    async with client_of(fleet, payload_limit=100, image_payload_limit=1_000) as client:
        for size, passed in ((900, True), (2_000, False)):
            assert (await client.post("/generate", json={"inputs": "x" * size})).status_code == 413
            received = await fleet.calls[-1]._receive()
            assert passed is bool(received["body"])


async def test_the_metrics_are_those_of_all_and_of_what_none_has_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = b"# HELP parley_http_failures x\n# TYPE parley_http_failures counter\nparley_http_failures 1\n"
    fleet = LocalFleet({"one": answers(), "two": answers()}, exposition=text)
    with caplog.at_level(logging.INFO, "parley.access"):
        async with client_of(fleet) as client:
            assert (await client.post("/generate", json=GENERATE)).status_code == 200
            packed = await client.post("/generate", json=GENERATE, headers={"content-encoding": "gzip"})
            assert packed.status_code == 415
            response = await client.get("/metrics")
    lines = [line for line in response.text.splitlines() if line.startswith("parley_http_failures")]
    assert {'parley_http_failures{replica="one"} 1', 'parley_http_failures{replica="two"} 1'} <= set(lines)
    assert 'parley_http_failures{replica="gateway",error_type="validation"} 1' in lines
    own = {line.partition("{")[0] for line in response.text.splitlines() if '"gateway"' in line}
    assert all(name.startswith(("parley_http_", "parley_log_")) for name in own)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    told = [(vars(record)["status"], vars(record)["operation"]) for record in caplog.records]
    assert told == [(415, "generate")]


@pytest.mark.parametrize("path", ["/health", "/readyz", "/v2/models/x/versions/1/ready", "/alive"])
async def test_a_probe_while_the_model_loads_is_no_failed_request(path: str) -> None:
    gateway, app = in_front(None, aip_health_route="/alive")
    async with serving(app) as client:
        assert (await client.get(path)).status_code == 503
        assert (await client.get("/info")).status_code == 503
    told = gateway.own_exposition().decode()
    assert re.search(r'\nparley_http_probes\w*{status="503"} 1', told)
    assert re.search(r'\nparley_http_requests\w*{status="503"} 1', told)
    assert re.search(r"\nparley_http_faults\w* 1", told)


async def test_where_no_replica_tells_its_metrics_there_is_no_engine() -> None:
    line = 'parley_engine_up{replica="gateway"} 0'
    async with client_of(None) as client:
        assert line in (await client.get("/metrics")).text
    async with client_of(LocalFleet({"one": answers()})) as client:
        assert line not in (await client.get("/metrics")).text


async def test_a_browser_may_read_what_the_gateway_says() -> None:
    async with client_of(None) as client:
        response = await client.post("/generate", json=GENERATE, headers={"origin": "http://x"})
    assert response.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("origins", [("*",), ("http://x",)])
async def test_a_browser_gets_the_headers_of_one_server(origins: tuple[str, ...]) -> None:
    service = make_service(cors_allow_origin=origins)
    app = create_app(service)
    fleet, given = LocalFleet({"one": app}), {"origin": "http://x", "cookie": "a=b"}
    async with serving(app, service) as direct, client_of(fleet, cors_allow_origin=origins) as client:
        own = await direct.get("/info", headers=given)
        seen = await client.get("/info", headers=given)
    assert sorted(seen.headers.multi_items())[:-1] == sorted(own.headers.multi_items())[:-1]
    assert "access-control-allow-origin" in seen.headers


async def test_without_a_key_no_body_is_taken() -> None:
    limits: dict[str, Any] = {"api_key": "secret", "payload_limit": 100, "image_payload_limit": 100}
    service = make_service(**limits)
    app = create_app(service)
    fleet = LocalFleet({"one": app})
    async with serving(app, service) as direct, client_of(fleet, **limits) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await client.post("/generate", json={"inputs": "x" * 200}, headers=headers)
            own = await direct.post("/generate", json=GENERATE, headers=headers)
            assert (refused.status_code, refused.content) == (own.status_code, own.content) == (401, b"")
            assert set(refused.headers) == set(own.headers)
            assert refused.headers["www-authenticate"] == own.headers["www-authenticate"]
        known = {"authorization": "Bearer secret"}
        large = await client.post("/generate", json={"inputs": "x" * 200}, headers=known)
        assert (await client.post("/generate", json=GENERATE, headers=known)).status_code == 200
    assert large.status_code == 413
    assert len(fleet.asked) == 2


@pytest.mark.parametrize(("count", "status"), [(16, 200), (17, 431)])
async def test_as_many_headers_as_are_allowed_pass(count: int, status: int) -> None:
    settings = of_a_replica(Settings(max_headers=16), Share(threads=1, cpus=1))
    service = make_service(settings)
    app = create_app(service)
    async with serving(app, service), client_of(LocalFleet({"one": app}), max_headers=16) as client:
        probe = client.build_request("GET", "/info")
        more = {f"x-{number}": "y" for number in range(count - len(probe.headers))}
        assert (await client.get("/info", headers=more)).status_code == status


async def test_a_server_that_ends_lets_run_what_runs_and_takes_nothing_new() -> None:
    goes_on = asyncio.Event()
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=goes_on)})
    gateway, app = in_front(fleet)
    app, begun = heard(app)
    async with serving(app) as client:
        running = asyncio.create_task(client.post("/generate_stream", json=GENERATE))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        draining = asyncio.create_task(gateway.drain(PATIENCE))
        await asyncio.sleep(0)  # it has begun
        late = await client.post("/generate", json=GENERATE)
        goes_on.set()
        await draining
        assert (await running).text == "data: 1\n\n"
    assert (late.status_code, late.json()["error"]) == (503, "The server shuts down")


async def test_what_has_not_ended_in_time_is_told_so() -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=asyncio.Event())})
    gateway, app = in_front(fleet)
    app, begun = heard(app)
    async with serving(app) as client:
        running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await gateway.drain(0.05)
        await gateway.drain(0)
        response = await asyncio.wait_for(running, PATIENCE)
    events = [line[6:] for line in response.text.splitlines() if line]
    assert events[0] == "1"
    assert json.loads(events[1])["error"]["message"] == "The server shuts down"
    assert events[2:] == ["[DONE]"]
    told = gateway.own_exposition().decode()  # to the replica it looks as if the client had left
    assert "\nparley_http_faults_total 1.0" in told or "\nparley_http_faults 1" in told
    assert re.search(r'\nparley_http_failures\w*{error_type="not_ready"} 1', told)


async def test_what_is_told_that_the_server_ends_is_not_cut_off() -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=asyncio.Event())})
    gateway, app = in_front(fleet)
    client = Connection()
    task = asyncio.ensure_future(app(client.scope, client.receive, client.send))
    await client.begun.wait()
    await gateway.drain(0)
    await asyncio.wait_for(task, PATIENCE)
    assert b"The server shuts down" in client.body
    assert client.cuts == []
