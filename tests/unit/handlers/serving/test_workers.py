"""`parley serve` with several API workers, as users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from handlers.http.signals import ECHO_SECONDS
from tests.ports import free_port
from tests.processes import children, command_line
from tests.unit.handlers.test_cli import PLAIN, ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="workers are found in /proc")

PATIENCE_SECONDS = 60
FAKE = """
import sys
from functools import partial
from handlers import cli; from handlers.serving import workers
from inference.process.supervision import EngineProcess
from tests.unit.inference_process.fake_engine import PROGRAM
workers.EngineProcess = partial(EngineProcess, program=PROGRAM)
sys.exit(cli.launcher(sys.argv[1:]))
"""
REAL = "import sys; from handlers import cli; sys.exit(cli.launcher(sys.argv[1:]))"
SHORT = {"inputs": "Hi", "parameters": {"max_new_tokens": 3}}
LONG = {"inputs": "Hi", "parameters": {"max_new_tokens": 4000}}  # eight seconds, if nobody stops it


@dataclass
class Live:
    """A server with its processes."""

    process: subprocess.Popen[str]
    address: str
    lines: list[str] = field(default_factory=list)

    def children(self, kind: str) -> list[int]:
        """Return the processes that it started, of those that run a module."""
        return sorted(child for child in children(self.process.pid) if kind in command_line(child))

    def flag(self, name: str) -> str:
        """Return what it was started with."""
        arguments = self.process.args
        assert isinstance(arguments, list)
        return str(arguments[arguments.index(name) + 1])

    def workers(self) -> list[int]:
        return self.children("handlers.serving.worker")

    def post(self, body: Any, path: str = "/generate") -> httpx.Response:
        """Ask over a connection of its own, so that any worker can take it."""
        return httpx.post(f"{self.address}{path}", json=body, timeout=PATIENCE_SECONDS)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.address}{path}", timeout=PATIENCE_SECONDS)

    def metric(self, series: str) -> float:
        text = self.get("/metrics").text
        (found,) = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{series} ")]
        return float(found)

    def in_flight(self, worker: int) -> float:
        """Return how many requests all workers hold, asked of one: an answer is read before it's counted."""
        with self.only(worker):
            lines = self.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("parley_worker_in_flight{"))

    @contextmanager
    def only(self, worker: int) -> Iterator[None]:
        """Have one worker take all connections, as the others stand still."""
        others = [each for each in self.workers() if each != worker]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            yield
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)

    @contextmanager
    def streaming(self, body: Any) -> Iterator[Iterator[str]]:
        """Begin a stream; gives its lines after the first."""
        with (
            httpx.Client(timeout=PATIENCE_SECONDS) as client,
            client.stream("POST", f"{self.address}/generate_stream", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("data:"), answer.read()
            yield lines


@contextmanager
def server(*flags: str, code: str = FAKE, ready: bool = True, workers: int = 2) -> Iterator[Live]:
    """Start a server with several workers and read its log; end it, if the test hasn't."""
    line = ["--hostname", "127.0.0.1", "--port", str(port := free_port()), "--api-workers", str(workers)]
    line += ["-g", "20", *flags]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *line],
        cwd=ROOT,
        env={**PLAIN, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    live = Live(process, f"http://127.0.0.1:{port}")
    assert process.stdout is not None
    reading = Thread(target=live.lines.extend, args=(process.stdout,), daemon=True)
    reading.start()
    try:
        if ready:
            until(lambda: any(line.endswith(" Connected\n") for line in live.lines), live)
        yield live
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
        reading.join(PATIENCE_SECONDS)
        process.stdout.close()


def until(true: Callable[[], bool], live: Live) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "".join(live.lines)
        assert live.process.poll() is None, "".join(live.lines)
        time.sleep(0.02)


def gone(process: int) -> bool:
    """Return whether a process has ended and was waited for."""
    return not Path(f"/proc/{process}").exists()


def told(live: Live, text: str) -> int:
    return sum(text in line for line in live.lines)


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    """Serve two places by two workers; whatever is killed comes back."""
    with server("--max-concurrent-requests", "2", "--prometheus-port", str(free_port())) as live:
        yield live


def test_any_worker_answers_and_shows_what_all_have_counted(shared: Live) -> None:
    names = (
        "tgi_request_count",
        "tgi_request_success",
        'tgi_request_failure{err="validation"}',
        "tgi_request_generated_tokens_sum",
    )
    before = [shared.metric(name) for name in names]
    assert len(shared.workers()) == 2
    for at, worker in enumerate(shared.workers(), 1):
        with shared.only(worker):
            assert shared.post(SHORT).status_code == 200
            assert shared.post({"inputs": ""}).status_code == 422
            after = [shared.metric(name) for name in names]
            assert [now - then for now, then in zip(after, before, strict=True)] == [2 * at, at, at, 3 * at]
    second = shared.flag("--prometheus-port")
    beside = httpx.get(f"http://127.0.0.1:{second}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    assert f"tgi_request_success {after[1]:g}" in beside
    assert "tgi_batch_current_size 0" in beside


def test_it_says_once_what_it_serves(shared: Live) -> None:
    assert told(shared, "Connected") == told(shared, "Serving parley-embedded") == 1


def test_places_are_shared_and_those_of_a_killed_worker_are_given_back(shared: Live) -> None:
    first, second = shared.workers()
    with ExitStack() as held:
        for worker in (first, second):
            with shared.only(worker):
                held.enter_context(shared.streaming(LONG))
        for worker in (first, second):
            with shared.only(worker):
                refused = shared.post(SHORT)
                assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
                assert int(refused.headers["retry-after"]) >= 1
        until(lambda: shared.in_flight(second) == 3, shared)  # both streams and this question
        with shared.only(second):
            before, faults = shared.metric("tgi_request_count"), shared.metric("parley_http_faults")
            failed = shared.metric('tgi_request_failure{err="incomplete"}')
        os.kill(first, signal.SIGKILL)
        until(lambda: shared.post(SHORT).status_code == 200, shared)  # its one place is free again
        until(lambda: shared.metric("tgi_batch_current_size") == 1, shared)  # and its request was aborted
        until(lambda: shared.metric("parley_http_faults") == faults + 1, shared)
        assert failed + 1 == shared.metric('tgi_request_failure{err="incomplete"}')
        until(lambda: len(shared.workers()) == 2 and first not in shared.workers(), shared)
        (successor,) = set(shared.workers()) - {second}
        with shared.only(successor):
            until(lambda: shared.post(SHORT).status_code == 200, shared)
            assert shared.metric("tgi_request_count") > before
    assert told(shared, "has ended (SIGKILL); another one starts in 0.5 s") == 1


def test_a_dead_engine_comes_back_for_all_workers(shared: Live) -> None:
    (engine,) = shared.children("fake_engine")
    os.kill(engine, signal.SIGKILL)
    until(lambda: shared.children("fake_engine") not in ([], [engine]), shared)
    for worker in shared.workers():
        with shared.only(worker):
            until(lambda: shared.post(SHORT).status_code == 200, shared)
    until(lambda: shared.metric("parley_engine_restarts") == 1, shared)
    assert shared.metric("parley_engine_up") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_requests_of_all_workers_end_and_exits_0(number: signal.Signals) -> None:
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 400, "details": True}}
    with server() as live, ExitStack() as held:
        processes = [*live.workers(), *live.children("fake_engine")]
        assert len(processes) == 3
        streams = []
        for worker in live.workers():
            with live.only(worker):
                streams.append(held.enter_context(live.streaming(body)))
        live.process.send_signal(number)
        for lines in streams:
            *_, last = [json.loads(line.removeprefix("data:")) for line in lines if line]
            assert last["details"]["generated_tokens"] == 400
        assert live.process.wait(PATIENCE_SECONDS) == 0
        assert all(map(gone, processes))
        with pytest.raises(httpx.ConnectError):
            live.post(SHORT)
    name = "SIGTERM" if number is signal.SIGHUP else number.name
    assert told(live, f"{name}: the API workers are told to end") == 1
    assert [told(live, f"API worker {each}: no more requests are taken; 1 run, ") for each in (0, 1)] == [
        1,
        1,
    ]


def test_a_second_signal_ends_the_requests_of_all_workers_at_once() -> None:
    with server() as live, ExitStack() as held:
        processes = [*live.workers(), *live.children("fake_engine")]
        streams = []
        for worker in live.workers():
            with live.only(worker):
                streams.append(held.enter_context(live.streaming(LONG)))
        live.process.terminate()
        until(lambda: live.get("/readyz").status_code == 503, live)
        time.sleep(2 * ECHO_SECONDS)
        live.process.terminate()
        for lines in streams:
            *_, last = [line for line in lines if line]
            assert "The server shuts down" in last
        assert live.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        assert all(map(gone, processes))


def test_a_service_managers_signal_to_all_processes_lets_requests_end() -> None:
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 400, "details": True}}
    with server() as live, live.streaming(body) as lines:
        for process in [*live.workers(), *live.children("fake_engine"), live.process.pid]:
            os.kill(process, signal.SIGTERM)
            time.sleep(0.1)
        *_, last = [json.loads(line.removeprefix("data:")) for line in lines if line]
        assert last["details"]["generated_tokens"] == 400
        assert live.process.wait(PATIENCE_SECONDS) == 0
    assert told(live, "Interrupted again") == 0


def test_a_worker_that_stands_still_is_replaced() -> None:
    with server("--worker-timeout", "1.5") as live:
        first, second = live.workers()
        os.kill(first, signal.SIGSTOP)
        until(lambda: len(live.workers()) == 2 and first not in live.workers(), live)
        assert second in live.workers()
        assert told(live, "API worker ") >= 1
    assert told(live, "has stood still for more than 1.5 s, which `worker_timeout` sets, and is killed") == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_when_the_first_process_is_killed_the_others_end(stopped: bool) -> None:
    with server() as live, ExitStack() as held:
        processes = [*live.workers(), *live.children("fake_engine")]
        for worker in live.workers():
            with live.only(worker):
                held.enter_context(live.streaming(LONG))
        for process in processes if stopped else ():
            os.kill(process, signal.SIGSTOP)
        live.process.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(map(gone, processes)):
            assert time.monotonic() < deadline, processes
            time.sleep(0.02)


def test_a_signal_while_the_model_loads_ends_at_once_with_0() -> None:
    with server(ready=False) as live:
        until(lambda: told(live, "Listening on ") == 1 and len(live.workers()) == 2, live)
        processes = [*live.workers(), *live.children("fake_engine")]
        live.process.terminate()
        assert live.process.wait(PATIENCE_SECONDS) == 0
        assert all(map(gone, processes))
    assert told(live, "Traceback") == told(live, "ERROR") == 0


def test_a_model_that_is_not_there_is_told_once_and_ends_with_1() -> None:
    with server("--model-id", "/no/such/model", ready=False) as live:
        assert live.process.wait(PATIENCE_SECONDS) == 1
    assert told(live, "`/no/such/model` is neither a directory nor a hub id (`org/name`)") == 1
    assert told(live, "Traceback") == 0


def test_a_fault_after_the_model_was_loaded_is_told_and_ends_with_1() -> None:
    faulty = FAKE.replace("sys.exit(", "workers.Metrics.bind = lambda *_: 1 / 0\nsys.exit(")
    with server(code=faulty, ready=False) as live:
        assert live.process.wait(PATIENCE_SECONDS) == 1
    assert told(live, "ZeroDivisionError: division by zero") >= 1
    assert told(live, "Connected") == 0


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_the_embedded_model_is_served_by_all_workers_alike() -> None:
    body = {"inputs": "The weather is", "parameters": {"max_new_tokens": 12, "do_sample": False}}
    with server(code=REAL) as live:
        texts = []
        for worker in live.workers():
            with live.only(worker):
                texts.append(live.post(body).json()["generated_text"])
                assert live.get("/info").json()["model_id"] == "parley-embedded"
        assert texts[0] == texts[1] != ""
        assert live.metric("tgi_request_generated_tokens_sum") == 24
        assert told(live, "Plan: ") == 1
        live.process.terminate()
        assert live.process.wait(PATIENCE_SECONDS) == 0
