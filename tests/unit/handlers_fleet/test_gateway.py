from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from typing import Any

import httpx
import pytest
from jsonschema import Draft4Validator
from prometheus_client.parser import text_string_to_metric_families

from codegen.document import SCHEMAS, Document
from codegen.examples import read_frame
from handlers.app import create_app
from handlers.fleet.affinity import beginnings
from handlers.service import Service
from handlers.settings.table import Settings
from tests.contract.likeness import without_its_own
from tests.support import make_service, serving
from tests.unit.handlers_fleet.local import (
    CHAT,
    GENERATE,
    Connection,
    LocalFleet,
    answers,
    client_of,
    in_front,
    says,
    streams,
)

pytestmark = pytest.mark.anyio
DOCUMENT = Document.load()

REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/generate", GENERATE),
    ("POST", "/generate_stream", GENERATE),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 5, "seed": 1}),
    ("POST", "/v1/messages", {**CHAT, "max_tokens": 5, "seed": 1}),
    ("POST", "/v1/messages", {}),
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


def plain(response: httpx.Response) -> tuple[int, dict[str, str], str]:
    """Return a response without what differs from one to the next."""
    headers = {
        name: value
        for name, value in response.headers.items()
        if not name.startswith(("x-", "request-id")) or name in ("x-compute-type", "x-ignored-parameters")
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
    return without_its_own(told)


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


COUNTED = ("parley_http_requests", "parley_http_failures", "tgi_request_count", "tgi_request_failure")


def counted(*services: Service) -> dict[str, float]:
    """Return what services have counted of requests, less what is zero."""
    found: defaultdict[str, float] = defaultdict(float)
    for service in services:
        for family in text_string_to_metric_families(service.metrics.render().decode()):
            for sample in family.samples:
                if sample.name.removesuffix("_total").startswith((*COUNTED, "parley_http_declined")):
                    labels = "".join(f" {each}" for each in sample.labels.values())
                    found[sample.name.removesuffix("_total") + labels] += sample.value
    return {name: value for name, value in found.items() if value}


async def test_what_was_declined_is_counted_by_whoever_answers_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "parley.access")
    full, idle = make_service(Settings(max_concurrent_requests=1)), make_service()
    fleet = LocalFleet({"full": create_app(full), "idle": create_app(idle)})
    async with (
        serving(fleet.apps["full"], full),
        serving(fleet.apps["idle"], idle),
        client_of(fleet) as client,
    ):
        with full.engine.admit():
            assert (await client.post("/generate", json=GENERATE)).status_code == 200
    assert counted(full) == {"parley_http_declined": 1}
    assert counted(idle) == {"parley_http_requests 200": 1, "tgi_request_count": 1}
    assert [record.__dict__["status"] for record in caplog.records if record.name == "parley.access"] == [200]


async def test_what_the_last_one_declines_is_counted_once() -> None:
    full = [make_service(Settings(max_concurrent_requests=1)) for _ in range(2)]
    fleet = LocalFleet({name: create_app(service) for name, service in zip("ab", full, strict=True)})
    async with (
        serving(fleet.apps["a"], full[0]),
        serving(fleet.apps["b"], full[1]),
        client_of(fleet) as client,
    ):
        with full[0].engine.admit(), full[1].engine.admit():
            assert (await client.post("/generate", json=GENERATE)).status_code == 429
    assert counted(*full) == {
        "parley_http_declined": 1,
        "parley_http_requests 429": 1,
        "parley_http_failures overloaded": 1,
        "tgi_request_count": 1,
        "tgi_request_failure overloaded": 1,
    }


async def test_what_all_decline_is_declined() -> None:
    fleet = LocalFleet({name: says(429, "overloaded") for name in ("one", "two")})
    async with client_of(fleet) as client:
        response = await client.post("/generate", json=GENERATE)
    assert (response.status_code, response.json()["error_type"]) == (429, "overloaded")
    assert [name for name, _ in fleet.asked] == ["one", "two"]


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


@pytest.mark.parametrize("pieces", [-1, 2])
async def test_the_line_of_what_was_lost_has_its_operation(
    pieces: int, caplog: pytest.LogCaptureFixture
) -> None:
    apps = {name: streams(b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n") for name in "ab"}
    caplog.set_level(logging.INFO, "parley.access")
    async with client_of(LocalFleet(apps, lost=dict.fromkeys(apps, pieces))) as client:
        await client.post("/generate_stream", json=GENERATE)
    (line,) = [vars(record) for record in caplog.records if record.name == "parley.access"]
    assert (line["operation"], line["error_type"]) == ("generate_stream", "generation")


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


async def test_a_stream_of_named_events_whose_replica_is_lost_ends_with_one_that_follows() -> None:
    pieces = [
        b'event: a\ndata: {"sequence_number":0}\n\nevent: a\ndata: {"sequence_number":1}\n\n',
        b'event: a\ndata: {"type":"a","sequence_number":2,"text":"\\"sequence_number\\":7"}\n\n',
        b":\n\n",
        b"never",
    ]
    fleet = LocalFleet({"one": streams(*pieces)}, lost={"one": 3})
    async with client_of(fleet) as client:
        response = await client.post("/v1/responses", json={"input": "Hi", "stream": True})
    *before, last, end = response.text.split("\n\n")
    name, data = read_frame(last)
    told = json.loads(data)
    assert (len(before), end) == (4, "")
    assert (name, told["type"], told["code"], told["sequence_number"]) == ("error", "error", "generation", 3)
    assert told["request_id"] == response.headers["x-request-id"]
    assert Draft4Validator(DOCUMENT.draft4({"$ref": SCHEMAS + "ResponseErrorEvent"})).is_valid(told)


async def test_a_stream_of_messages_whose_replica_is_lost_ends_with_anthropics_error() -> None:
    fleet = LocalFleet({"one": streams(b"event: a\ndata: {}\n\n", b"never")}, lost={"one": 1})
    async with client_of(fleet) as client:
        response = await client.post("/v1/messages", json={**CHAT, "stream": True})
    *_, last, end = response.text.split("\n\n")
    name, data = read_frame(last)
    told = json.loads(data)
    assert (end, name, told["error"]["type"]) == ("", "error", "api_error")
    assert told["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert Draft4Validator(DOCUMENT.draft4({"$ref": SCHEMAS + "MessageError"})).is_valid(told)


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


@pytest.mark.parametrize("limit", ["requests_per_minute", "max_concurrent_requests_per_key"])
async def test_all_are_asked_where_each_has_a_share_of_a_callers_limit(limit: str) -> None:
    apps = {name: says(429, "rate_limited") for name in "abcde"}
    fleet = LocalFleet({**apps, "f": answers()})
    async with client_of(fleet, **{limit: 12}) as client:
        assert (await client.post("/generate", json=GENERATE)).status_code == 200
    assert [name for name, _ in fleet.asked] == [*"abcdef"]
