from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.app import create_app
from handlers.fleet import gateway as module
from handlers.fleet.affinity import beginnings
from handlers.fleet.call import Answer, Route
from handlers.fleet.gateway import Gateway
from handlers.fleet.shares import Share, of_a_replica
from handlers.fleet.stack import stack
from handlers.http.sse import CUT
from handlers.settings import Settings
from tests.support import make_service, serving
from tests.unit.handlers_fleet.local import LocalFleet

pytestmark = pytest.mark.anyio

GENERATE = {"inputs": "hello", "parameters": {"max_new_tokens": 5}}
CHAT = {"model": "x", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/generate", GENERATE),
    ("POST", "/generate_stream", GENERATE),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/completions", {"model": "x", "prompt": "hello", "max_tokens": 3, "seed": 1}),
    ("POST", "/tokenize", {"inputs": "hello"}),
    ("POST", "/generate", {"inputs": ""}),
    ("POST", "/generate", {"inputs": 5}),
    ("POST", "/v1/chat/completions", {}),
    ("GET", "/info", None),
    ("GET", "/health", None),
    ("GET", "/v1/models", None),
    ("GET", "/nothing", None),
    ("DELETE", "/generate", None),
    ("GET", "/docs/", None),
]


@asynccontextmanager
async def nothing(application: object) -> AsyncIterator[None]:
    yield


def in_front(fleet: LocalFleet | None, **changes: Any) -> tuple[Gateway, ASGIApp]:
    settings = Settings(**changes)
    gateway = Gateway(settings, fleet)
    return gateway, stack(gateway, settings, nothing)


@asynccontextmanager
async def client_of(fleet: LocalFleet | None, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(in_front(fleet, **changes)[1]) as client:
        yield client


def says(status: int, error_type: str) -> ASGIApp:
    return JSONResponse({"error": "no", "error_type": error_type}, status)


def answers(text: str = "ok") -> ASGIApp:
    return JSONResponse({"generated_text": text})


def streams(*parts: bytes, wait: asyncio.Event | None = None) -> ASGIApp:
    async def events() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            await asyncio.sleep(0.01)
        if wait is not None:
            await wait.wait()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)

    return app


def plain(response: httpx.Response) -> tuple[int, dict[str, str], str]:
    """Return a response without what differs from one to the next."""
    headers = {
        name: value
        for name, value in response.headers.items()
        if not name.startswith("x-") or name in ("x-compute-type", "x-ignored-parameters")
    }
    return response.status_code, headers, response.text


def steady(text: str, content_type: str) -> Any:
    """Return a body without ids and times."""
    if content_type.startswith("text/event-stream"):
        events = [line.removeprefix("data:").strip() for line in text.splitlines()]
        return [steady(told, "application/json") for told in events if told.startswith("{")]
    if not content_type.startswith("application/json"):
        return text
    told = json.loads(text)
    if isinstance(told, list):
        return told
    for name in ("id", "created", "request_id"):
        told.pop(name, None)
    return told


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_an_answer_is_the_replicas_own(method: str, path: str, body: Any) -> None:
    service = make_service()
    app = create_app(service)
    async with serving(app, service) as direct, client_of(LocalFleet({"one": app})) as through:
        own = plain(await direct.request(method, path, json=body))
        seen = plain(await through.request(method, path, json=body))
    assert own[0] == seen[0]
    kind = own[1].get("content-type", "")
    own[1].pop("content-length", None)  # ids and times are longer or shorter
    seen[1].pop("content-length", None)
    assert own[1] == seen[1]
    assert steady(own[2], kind) == steady(seen[2], kind)


async def test_the_request_has_one_id_for_both() -> None:
    service = make_service()
    app = create_app(service)
    async with serving(app, service), client_of(LocalFleet({"one": app})) as client:
        given = await client.post("/generate", json={"inputs": ""}, headers={"x-request-id": "mine"})
        made = await client.post("/generate", json={"inputs": ""})
    assert given.headers.get_list("x-request-id") == ["mine"]
    assert given.json()["request_id"] == "mine"
    assert made.headers.get_list("x-request-id") == [made.json()["request_id"]]


async def test_the_router_is_told_how_the_prompt_begins() -> None:
    fleet = LocalFleet({"one": answers()})
    body = json.dumps({"inputs": "x" * 1000}).encode()
    async with client_of(fleet) as client:
        await client.post("/generate", content=body, headers={"content-type": "application/json"})
    assert fleet.asked == [("one", beginnings(body))]
    assert beginnings(body)


@pytest.mark.parametrize("off", ["prefix_affinity", "prefix_caching"])
async def test_the_router_is_told_nothing_where_that_would_gain_nothing(off: str) -> None:
    fleet = LocalFleet({"one": answers()})
    async with client_of(fleet, **{off: False}) as client:
        await client.post("/generate", json={"inputs": "x" * 1000})
    assert fleet.asked == [("one", ())]


@pytest.mark.parametrize("error_type", ["overloaded", "rate_limited", "not_ready", "healthcheck"])
async def test_what_one_replica_declines_another_does(error_type: str) -> None:
    fleet = LocalFleet({"full": says(503, error_type), "idle": answers()})
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, [name for name, _ in fleet.asked]) == (200, ["full", "idle"])


async def test_what_all_decline_is_declined() -> None:
    fleet = LocalFleet({name: says(429, "overloaded") for name in ("one", "two")})
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, response.json()["error_type"]) == (429, "overloaded")
    assert [name for name, _ in fleet.asked] == ["one", "two", "one"]


async def test_no_more_than_three_are_asked() -> None:
    fleet = LocalFleet({name: says(429, "overloaded") for name in "abcdef"})
    async with client_of(fleet) as client:
        assert (await client.post("/generate", json=GENERATE)).status_code == 429
    assert [name for name, _ in fleet.asked] == ["a", "b", "c"]


@pytest.mark.parametrize("status", [400, 422, 424, 500])
async def test_what_is_the_requests_own_fault_is_nobody_elses(status: int) -> None:
    fleet = LocalFleet({"one": says(status, "validation"), "two": answers()})
    async with client_of(fleet) as client:
        assert (await client.post("/generate", json=GENERATE)).status_code == status
    assert len(fleet.asked) == 1


@pytest.mark.parametrize("pieces", [-1, 0])
async def test_a_request_whose_replica_is_lost_before_it_answers_goes_on(pieces: int) -> None:
    fleet = LocalFleet({"one": answers("first"), "two": answers("second")}, lost={"one": pieces})
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, response.json()) == (200, {"generated_text": "second"})


async def test_a_request_that_loses_two_replicas_fails() -> None:
    fleet = LocalFleet({name: answers() for name in "abc"}, lost={"a": 0, "b": -1})
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, response.json()["error_type"]) == (424, "generation")
    assert len(fleet.asked) == 2


@pytest.mark.parametrize(
    ("path", "body", "ends"),
    [
        ("/generate_stream", GENERATE, False),
        ("/v1/chat/completions", CHAT, True),
        ("/v1/completions", GENERATE, True),
        ("/invocations", GENERATE, False),
        ("/invocations", CHAT, True),
    ],
)
async def test_a_stream_whose_replica_is_lost_ends_with_one_error(
    path: str, body: dict[str, Any], ends: bool
) -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n")}, lost={"one": 2})
    async with client_of(fleet) as client:
        response = await client.post(path, json=body)
    events = [line[6:] for line in response.text.splitlines() if line]
    assert events[:2] == ["1", "2"]
    failure = json.loads(events[2])
    failure = failure["error"] if ends else failure
    assert failure["error_type"] == "generation"
    assert failure["request_id"] == response.headers["x-request-id"]
    assert events[3:] == (["[DONE]"] if ends else [])


class Connection:
    """A client whose reading can be held up, and who can leave."""

    def __init__(self) -> None:
        self.left, self.begun, self.reads = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.body = b""
        self._request = iter([{"type": "http.request", "body": b"{}", "more_body": False}])
        self.cuts: list[str] = []

    async def receive(self) -> Message:
        for message in self._request:
            return message
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.begun.set()
            await self.reads.wait()

    @property
    def scope(self) -> Scope:
        return {
            **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "root_path": ""},
            **{"path": "/generate_stream", "raw_path": b"/generate_stream", "query_string": b""},
            "extensions": {CUT: lambda: self.cuts.append("cut")},
            "headers": [(b"content-type", b"application/json")],
        }


async def test_a_client_that_leaves_ends_its_request() -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=asyncio.Event())})
    app, client = in_front(fleet)[1], Connection()
    task = asyncio.ensure_future(app(client.scope, client.receive, client.send))
    await client.begun.wait()
    assert not fleet.calls[0].gone.is_set()
    client.left.set()
    await asyncio.wait_for(task, 5)
    assert fleet.calls[0].gone.is_set()


@pytest.mark.parametrize("lost", [None, 3])
async def test_who_reads_slowly_is_sent_everything_once(lost: int | None) -> None:
    parts = [b"data: %d\n\n" % number for number in range(6)]
    fleet = LocalFleet({"one": streams(*parts)}, lost={} if lost is None else {"one": lost})
    app, client = in_front(fleet)[1], Connection()
    client.reads.clear()
    task = asyncio.ensure_future(app(client.scope, client.receive, client.send))
    await client.begun.wait()
    client.reads.set()
    await asyncio.sleep(0.005)
    client.reads.clear()
    await asyncio.sleep(0.3)  # all the rest has come meanwhile
    client.reads.set()
    await asyncio.wait_for(task, 5)
    told = client.body.split(b"data: {")[0]
    assert told == b"".join(parts[:lost])


async def test_who_does_not_read_at_all_is_cut_off() -> None:
    fleet = LocalFleet({"one": streams(*[b"x" * 1000] * 20, wait=asyncio.Event())})
    app, client = in_front(fleet, stream_buffer=5000)[1], Connection()
    client.reads.clear()
    task = asyncio.ensure_future(app(client.scope, client.receive, client.send))
    await asyncio.sleep(0.1)
    client.reads.set()  # the first piece
    await asyncio.sleep(0)
    client.reads.clear()
    async with asyncio.timeout(5):
        while not client.cuts:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert client.cuts == ["cut"]


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


async def test_a_body_that_is_too_long_is_refused_here() -> None:
    fleet = LocalFleet({"one": answers()})
    async with client_of(fleet, payload_limit=100) as client:
        response = await client.post("/generate", json={"inputs": "x" * 200})
    assert response.status_code == 413
    assert fleet.asked == []


async def test_the_metrics_are_those_of_all_and_of_what_none_has_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = b"# HELP parley_http_failures x\n# TYPE parley_http_failures counter\nparley_http_failures 1\n"
    fleet = LocalFleet({"one": answers(), "two": answers()}, exposition=text)
    with caplog.at_level(logging.INFO, "parley.access"):
        async with client_of(fleet, payload_limit=100) as client:
            assert (await client.post("/generate", json=GENERATE)).status_code == 200
            assert (await client.post("/generate", json={"inputs": "x" * 200})).status_code == 413
            response = await client.get("/metrics")
    lines = [line for line in response.text.splitlines() if line.startswith("parley_http_failures")]
    assert {'parley_http_failures{replica="one"} 1', 'parley_http_failures{replica="two"} 1'} <= set(lines)
    assert 'parley_http_failures{replica="gateway",error_type="validation"} 1' in lines
    own = {line.partition("{")[0] for line in response.text.splitlines() if '"gateway"' in line}
    assert all(name.startswith(("parley_http_", "parley_log_")) for name in own)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert [vars(record)["status"] for record in caplog.records] == [413]


async def test_a_browser_may_read_what_the_gateway_says() -> None:
    async with client_of(None) as client:
        response = await client.post("/generate", json=GENERATE, headers={"origin": "http://x"})
    assert response.headers["access-control-allow-origin"] == "*"


async def test_without_a_key_no_body_is_taken() -> None:
    service = make_service(api_key="secret")
    app = create_app(service)
    fleet = LocalFleet({"one": app})
    async with serving(app, service), client_of(fleet, api_key="secret", payload_limit=100) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await client.post("/generate", json={"inputs": "x" * 200}, headers=headers)
            assert refused.status_code == 401
        known = {"authorization": "Bearer secret"}
        large = await client.post("/generate", json={"inputs": "x" * 200}, headers=known)
        assert (await client.post("/generate", json=GENERATE, headers=known)).status_code == 200
    assert large.status_code == 413
    assert len(fleet.asked) == 3


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
    async with serving(app) as client:
        running = asyncio.create_task(client.post("/generate_stream", json=GENERATE))
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(gateway.drain(10))
        await asyncio.sleep(0.05)
        late = await client.post("/generate", json=GENERATE)
        goes_on.set()
        await draining
        assert (await running).text == "data: 1\n\n"
    assert (late.status_code, late.json()["error"]) == (503, "The server shuts down")


async def test_what_has_not_ended_in_time_is_told_so() -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=asyncio.Event())})
    gateway, app = in_front(fleet)
    async with serving(app) as client:
        running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await asyncio.sleep(0.1)
        await gateway.drain(0.05)
        await gateway.drain(0)
        response = await asyncio.wait_for(running, 5)
    events = [line[6:] for line in response.text.splitlines() if line]
    assert events[0] == "1"
    assert json.loads(events[1])["error"]["message"] == "The server shuts down"
    assert events[2:] == ["[DONE]"]


async def test_what_is_told_that_the_server_ends_is_not_cut_off() -> None:
    fleet = LocalFleet({"one": streams(b"data: 1\n\n", wait=asyncio.Event())})
    gateway, app = in_front(fleet)
    client = Connection()
    task = asyncio.ensure_future(app(client.scope, client.receive, client.send))
    await client.begun.wait()
    await gateway.drain(0)
    await asyncio.wait_for(task, 5)
    assert b"The server shuts down" in client.body
    assert client.cuts == []
