"""What is counted of HTTP, and by several API processes together."""

import contextvars
import re
import time
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from starlette.types import Receive, Scope, Send

import openapi
from handlers.account import Account, open_account
from handlers.http.errors import FAULTS, is_fault
from handlers.http.middleware import Edge, ErrorBoundary
from handlers.http.operations import PROBES, WATCHING, operation_table
from handlers.metrics.board import Board
from handlers.metrics.metrics import Metrics
from handlers.metrics.table import table, width
from handlers.routes.aliases import HEALTH
from inference.core import Life
from inference.frontend.shared import SharedMemory
from inference.types import Request
from tests.unit.handlers.metrics.test_metrics import FINISH, MODEL, STEP, families, value

POST = {"method": "POST"}


def test_http_requests_count_by_status_and_what_went_wrong() -> None:
    metrics = Metrics()
    scope: dict[str, str] = {}
    for status, error_type in ((200, ""), (429, "overloaded"), (418, "teapot"), (200, "generation")):
        account = Account("id", time.monotonic(), status=status, error_type=error_type)
        metrics.began(scope, account)
        assert 1 == value(metrics, "parley_worker_in_flight", worker="0")
        metrics.ended(scope, account)
    statuses = {"200": 2, "429": 1, "other": 1, "500": 0}
    assert statuses == {s: value(metrics, "parley_http_requests", status=s) for s in statuses}
    types = {"overloaded": 1, "generation": 1, "other": 1, "validation": 0}
    assert types == {t: value(metrics, "parley_http_failures", error_type=t) for t in types}
    assert 1 == value(metrics, "parley_http_faults")
    assert 0 == value(metrics, "parley_worker_in_flight", worker="0")
    assert (
        4
        == value(metrics, "parley_worker_requests", worker="0")
        == value(metrics, "parley_http_duration_count")
    )


@pytest.mark.parametrize(
    ("status", "error_type", "faults"),
    [
        (200, "", 0),
        (424, "generation", 1),
        (500, "internal", 1),
        (503, "not_ready", 1),
        (504, "", 1),
        *((200, error_type, 1) for error_type in sorted(FAULTS)),  # of a stream that had begun
        (200, "validation", 0),
        (200, "overloaded", 0),
        (401, "unauthorized", 0),
        (408, "timeout", 0),
        (422, "validation", 0),
        (429, "overloaded", 0),
        (429, "rate_limited", 0),
        (499, "", 0),
    ],
)
def test_a_request_that_the_server_failed_is_a_fault_and_counts_once(
    status: int, error_type: str, faults: int
) -> None:
    metrics = Metrics()
    account = Account("id", time.monotonic(), status=status, error_type=error_type)
    metrics.began({}, account)
    metrics.ended({}, account)
    assert faults == value(metrics, "parley_http_faults")


@pytest.mark.anyio
async def test_an_answer_that_breaks_off_is_a_fault() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    metrics = Metrics()
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    with pytest.raises(ZeroDivisionError):
        await Edge(ErrorBoundary(broken), [metrics])(scope, AsyncMock(), AsyncMock())
    assert 1 == value(metrics, "parley_http_faults")
    assert 1 == value(metrics, "parley_http_failures", error_type="internal")


def test_faults_are_what_the_contract_answers_with_424_or_more_but_to_probes() -> None:
    table_of_types = openapi.load()["components"]["schemas"]["ErrorResponse"]["properties"]["error_type"]
    rows = re.findall(r"^\| (`.*?) \| (\d+) \|$", table_of_types["description"], re.MULTILINE)
    told = {name for names, status in rows for name in names.split("`")[1::2] if is_fault(int(status))}
    assert told - {"healthcheck"} == FAULTS


@pytest.mark.parametrize("operation", sorted(WATCHING))
def test_a_probe_is_no_request_that_could_fail(operation: str) -> None:
    metrics = Metrics()
    for status in (503, 503, 200, 500):
        error_type = "not_ready" if status >= 500 else ""
        account = Account("id", time.monotonic(), operation, status=status, error_type=error_type)
        metrics.began({}, account)
        metrics.ended({}, account)
    assert 0 == sum(each.value for each in families(metrics)["parley_http_requests"].samples)
    statuses = {"503": 2, "200": 1, "other": 1}
    assert statuses == {s: value(metrics, "parley_http_probes", status=s) for s in statuses}
    assert 0 == value(metrics, "parley_http_faults") == value(metrics, "parley_http_duration_count")
    assert 3 == value(metrics, "parley_http_failures", error_type="not_ready")


def test_every_probe_of_the_contract_is_known() -> None:
    document = openapi.load()
    unhealthy = document["components"]["responses"]["Unhealthy"]
    rows = [row for row in operation_table(document).values() if row.method == "GET"]
    asking = {row.id for row in rows if row.responses.get("503") is unhealthy}
    asking |= {row.id for row in rows if "content" not in row.responses["200"]}
    assert PROBES == asking | {"kserve_live", HEALTH.operation_id}


def test_every_error_type_of_the_contract_has_a_series() -> None:
    schema = openapi.load()["components"]["schemas"]["ErrorResponse"]["properties"]["error_type"]
    (row,) = [row for row in table()["metrics"] if row["name"] == "parley_http_failures"]
    assert {*schema["x-extensible-enum"], "unauthorized", "other"} <= {*row["labels"]["error_type"]}


def test_each_worker_is_shown_by_itself_and_begins_with_nothing_in_flight() -> None:
    memory = SharedMemory.create(Board.size(3, width()))
    first, second, engines = (Metrics(Board.of(memory, 3), row) for row in range(3))
    assert [False, False, True] == [one.hears_engine for one in (first, second, engines)]
    asked(second)
    shown = families(engines)["parley_worker_in_flight"].samples
    assert [({"worker": "0"}, 0), ({"worker": "1"}, 1)] == [(each.labels, each.value) for each in shown]
    Metrics(Board.of(memory, 3), 1)  # takes the place of the second, which died with its request
    assert 0 == value(first, "parley_worker_in_flight", worker="1")
    assert 0 == value(first, "parley_worker_generating", worker="1")


def test_what_a_worker_died_with_is_the_servers_fault_and_in_flight_no_more() -> None:
    memory = SharedMemory.create(Board.size(3, width()))
    first, second, engines = (Metrics(Board.of(memory, 3), row) for row in range(3))
    for worker in (first, second, second):
        asked(worker)
    second.began({"method": "GET"}, Account("id", 0.0))  # a probe
    second.began(POST, Account("id", 0.0))  # whose body hasn't come, or that asks for tokens alone
    assert 1 == value(engines, "parley_worker_preparing", worker="1")
    engines.bury(1)
    assert 3 == value(engines, "parley_http_requests", status="other")
    assert 3 == value(engines, "parley_http_faults")
    assert 2 == value(engines, "tgi_request_failure", err="incomplete")
    for name, left in (("in_flight", 1), ("preparing", 0), ("generating", 1)):
        assert left == value(engines, f"parley_worker_{name}", worker="0")
        assert 0 == value(engines, f"parley_worker_{name}", worker="1")


def asked(metrics: Metrics) -> Account:
    """Have a request that asks for generation begin."""
    account = Account("id", time.monotonic())

    def answer() -> None:
        open_account(account)
        metrics.began(POST, account)
        metrics.count_request()

    contextvars.copy_context().run(answer)
    return account


def test_a_request_that_asks_for_generation_is_generating_until_it_has_ended() -> None:
    metrics = Metrics()
    watching, account = Account("id", time.monotonic()), asked(metrics)
    metrics.began({}, watching)
    assert 1 == value(metrics, "parley_worker_generating", worker="0")
    metrics.ended({}, watching)
    assert 1 == value(metrics, "parley_worker_generating", worker="0")
    metrics.ended({}, account)
    assert 0 == value(metrics, "parley_worker_generating", worker="0")


def test_a_request_with_a_body_is_preparing_until_it_asks_for_generation_or_ends() -> None:
    metrics, account = Metrics(), Account("id", time.monotonic())
    metrics.began(POST, account)
    assert 1 == value(metrics, "parley_worker_preparing", worker="0")
    metrics.ended(POST, account)
    assert 0 == value(metrics, "parley_worker_preparing", worker="0")
    generating = asked(metrics)
    assert 0 == value(metrics, "parley_worker_preparing", worker="0")
    metrics.ended(POST, generating)
    assert 0 == value(metrics, "parley_worker_preparing", worker="0")


def test_only_who_hears_of_the_engine_says_that_it_is_up() -> None:
    memory = SharedMemory.create(Board.size(2, width()))
    worker, engines = (Metrics(Board.of(memory, 2), row) for row in range(2))
    worker.bind(MODEL)
    assert 0 == value(worker, "parley_engine_up")
    engines.bind(MODEL)
    engines.on_life(Life.DOWN, None)
    assert 0 == value(worker, "parley_engine_up")


def test_each_worker_takes_the_cache_of_an_engine_that_came_in_anothers_place() -> None:
    memory = SharedMemory.create(Board.size(2, width()))
    worker, engines = (Metrics(Board.of(memory, 2), row) for row in range(2))
    smaller = replace(MODEL, max_batch_total_tokens=MODEL.max_batch_total_tokens // 4)
    for each in (worker, engines):
        each.bind(MODEL)
    engines.on_life(Life.UP, smaller)
    worker.renew(Life.UP, smaller)
    assert smaller.max_batch_total_tokens == value(worker, "tgi_batch_max_total_tokens")


def test_each_of_several_processes_shows_what_all_of_them_counted() -> None:
    memory = SharedMemory.create(Board.size(3, width()))
    first, second, engines = (Metrics(Board.of(memory, 3), row) for row in range(3))
    for one in (first, second, engines):
        one.bind(MODEL)
    first.count_request()
    first.finished(FINISH, Request(id="r", prompt="p"))
    second.finished(FINISH, Request(id="s", prompt="p"))
    second.failure("dropped")
    engines.on_step(replace(STEP, waiting=3, running=2, kv_tokens=99, admitted=2))
    expected = {
        "tgi_request_count": 1,
        "tgi_request_success": 2,
        "tgi_request_duration_sum": 6.0,
        "tgi_request_duration_count": 2,
        "tgi_batch_next_size_sum": 2,
        # gauges of the engine, which all of them see
        "tgi_queue_size": 3,
        "tgi_batch_current_size": 2,
        "tgi_batch_current_max_tokens": 99,
        "tgi_batch_max_total_tokens": 6400,
    }
    for one in (first, second, engines):
        assert expected == {name: value(one, name) for name in expected}
        assert 1 == value(one, "tgi_request_failure", err="dropped")
        assert 2 == value(one, "tgi_request_input_length_bucket", le="30")


def test_whoever_takes_the_place_of_another_process_goes_on_counting() -> None:
    memory = SharedMemory.create(Board.size(2, width()))
    Metrics(Board.of(memory, 2), 1).count_request()
    successor = Metrics(Board.of(memory, 2), 1)
    successor.count_request()
    assert 2 == value(successor, "tgi_request_count")
