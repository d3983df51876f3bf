"""`parley serve --replicas 2`, with Ray Serve and the model that ships with Parley, through the socket."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`"),
]

START_SECONDS = 120.0
PATIENCE_SECONDS = 60.0  # for an answer
# So long may a busy replica take to say how many requests it has; then the other one is sent what was for it
ROUTING = {"RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "2"}
PLACES = 4  # of each replica
QUESTION = "What is the capital of France?"
LONG = "Write a very long story about a garden."


@dataclass(frozen=True)
class Fleet:
    """A server with two replicas, in a session of its own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_SECONDS)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_SECONDS)

    def stream(self, path: str, **body: Any) -> contextlib.AbstractContextManager[httpx.Response]:
        return httpx.stream("POST", self.url + path, json=body, timeout=PATIENCE_SECONDS)

    def metrics(self) -> str:
        """Return all metrics, once replicas tell theirs: while one is too busy for it, none are told."""
        told: list[str] = []

        def replicas_tell() -> bool:
            told.append(self.get("/metrics").text)
            return re.search(r'parley_engine_up{replica="(?!gateway")', told[-1]) is not None

        eventually(replicas_tell)
        return told[-1]

    def counted(self, name: str) -> Counter[str]:
        """Return a metric of each replica, over all other labels."""
        pattern = rf'^{name}{{replica="(\w+)"[^}}]*}} (\S+)$'
        counted = Counter[str]()
        for replica, value in re.findall(pattern, self.metrics(), re.MULTILINE):
            counted[replica] += int(float(value))
        return counted

    def processes(self, name: str) -> list[int]:
        """Return the processes of this server's session whose command line begins so."""
        lines = subprocess.run(["ps", "-eo", "pid,sess,args"], capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in lines.stdout.splitlines()[1:]]
        own = [(int(pid), args) for pid, session, args in rows if int(session) == self.process.pid]
        return [pid for pid, args in own if args.startswith(name)]


def eventually(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + START_SECONDS
    while not _true(holds):
        assert time.monotonic() < ends, "it didn't come to pass in time"
        time.sleep(0.1)


def _true(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except httpx.HTTPError:  # not yet, where it is asked over HTTP
        return False


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Fleet]:
    port, log = free_port(), folder / "log"
    line = [sys.executable, "-m", "handlers", "serve", "--replicas", "2", "--port", str(port), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ROUTING
    with log.open("wb") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        yield Fleet(process, f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    flags = ("--json-output", "--max-concurrent-requests", str(PLACES))
    with serving(tmp_path_factory.mktemp("fleet"), *flags) as server:
        eventually(lambda: b'"Connected"' in server.log.read_bytes() or server.process.poll() is not None)
        assert server.process.poll() is None, server.log.read_text()
        yield server


def test_an_answer_is_the_models(fleet: Fleet) -> None:
    greedy = fleet.post("/generate", inputs=QUESTION, parameters={"max_new_tokens": 8})
    assert (greedy.status_code, greedy.json()) == (200, {"generated_text": "\nThe capital of France"})
    messages = [{"role": "user", "content": QUESTION}]
    chat = fleet.post("/v1/chat/completions", model="x", messages=messages, temperature=0)
    assert "Paris" in chat.json()["choices"][0]["message"]["content"]
    with fleet.stream("/generate_stream", inputs=QUESTION, parameters={"details": True}) as response:
        events = [json.loads(line[5:]) for line in response.iter_lines() if line]
    assert "".join(event["token"]["text"] for event in events[:-1]).startswith("\nThe capital")
    assert events[-1]["details"]["finish_reason"] in ("length", "eos_token")


def test_a_body_of_many_images_reaches_the_replica_that_judges_it(fleet: Fleet) -> None:
    response = fleet.post("/generate", inputs="a" * 6_000_000)
    assert response.status_code == 413
    assert "it must have <= 2000000 bytes" in response.json()["error"]


def test_prompts_that_begin_alike_go_to_one_replica(fleet: Fleet) -> None:
    for beginning in "ABCD":
        before = fleet.counted("tgi_request_count")
        for at in range(4):
            prompt = beginning * 600 + str(at)
            assert fleet.post("/generate", inputs=prompt, parameters={"max_new_tokens": 1}).is_success
        counted = fleet.counted("tgi_request_count") - before
        assert list(counted.values()) == [4]
    assert len(fleet.counted("parley_engine_up")) == 2


def test_what_one_replica_has_no_place_for_the_other_takes(fleet: Fleet) -> None:
    names = ("parley_http_declined", "parley_http_failures", "tgi_request_count")
    before = [sum(fleet.counted(name).values()) for name in names]
    beginning = "Once upon a time. " * 20  # by which both are sent to the same one
    body = {"model": "x", "prompt": beginning, "n": PLACES - 1, "ignore_eos": True}
    with fleet.stream("/v1/completions", **body, max_tokens=900, stream=True) as response:
        lines = response.iter_lines()  # held: without it the response is closed
        next(lines)
        more = {**body, "prompt": f"{beginning}Then", "max_tokens": 5}
        assert fleet.post("/v1/completions", **more).is_success
    after = [sum(fleet.counted(name).values()) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 2]


def test_what_both_decline_is_refused_and_counted_once(fleet: Fleet) -> None:
    names = ("parley_http_declined", "parley_http_failures", "tgi_request_count", "tgi_request_failure")
    body = {"model": "x", "n": PLACES - 1, "ignore_eos": True}
    long = {**body, "max_tokens": 900, "stream": True}
    with (
        fleet.stream("/v1/completions", **long, prompt="One") as first,
        fleet.stream("/v1/completions", **long, prompt="Two") as second,
    ):
        lines = [first.iter_lines(), second.iter_lines()]  # held: without it the responses are closed
        for each in lines:
            next(each)
        before = [sum(fleet.counted(name).values()) for name in names]
        assert fleet.post("/v1/completions", **body, prompt="Three", max_tokens=5).status_code == 429
        after = [sum(fleet.counted(name).values()) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1, 1]


def test_a_client_that_leaves_ends_its_text(fleet: Fleet) -> None:
    body = {"model": "x", "prompt": LONG, "max_tokens": 900, "ignore_eos": True}
    began = time.monotonic()
    assert fleet.post("/v1/completions", **body).is_success
    whole = time.monotonic() - began
    finished = fleet.counted("tgi_request_success")
    with fleet.stream("/v1/completions", **body, stream=True) as response:
        next(response.iter_lines())
    time.sleep(3 * whole)  # by then it would have ended by itself
    assert fleet.counted("tgi_request_success") == finished


def test_the_log_is_of_one_form_and_says_whose_it_is(fleet: Fleet) -> None:
    answer = fleet.post("/generate", inputs=QUESTION)
    eventually(lambda: answer.headers["x-request-id"] in fleet.log.read_text())
    lines = [json.loads(line) for line in fleet.log.read_text().splitlines()]
    (access,) = [line for line in lines if line.get("request_id") == answer.headers["x-request-id"]]
    assert (access["target"], access["status"]) == ("parley.access", 200)
    assert access["replica"].startswith("pid=")


def test_where_one_of_two_dies_the_other_answers_until_it_is_replaced(fleet: Fleet) -> None:
    before = set(fleet.counted("parley_engine_up"))
    os.kill(fleet.processes("ray::ServeReplica")[0], signal.SIGKILL)
    for at in range(8):
        assert fleet.post("/generate", inputs=f"{at} {QUESTION}", parameters={"max_new_tokens": 2}).is_success
    assert fleet.counted("parley_engine_up")
    eventually(lambda: len(set(fleet.counted("parley_engine_up")) - before) == 1)
    eventually(lambda: len(fleet.counted("parley_engine_up")) == 2)


def test_a_replica_that_dies_ends_its_streams_with_an_error_and_is_replaced(fleet: Fleet) -> None:
    before = set(fleet.counted("parley_engine_up"))
    body = {"model": "x", "prompt": LONG, "max_tokens": 900, "stream": True, "ignore_eos": True}
    with fleet.stream("/v1/completions", **body) as response:
        lines = response.iter_lines()
        told = [next(lines)]
        for process in fleet.processes("ray::ServeReplica"):
            os.kill(process, signal.SIGKILL)
        told += [line for line in lines if line]
    assert json.loads(told[-2].removeprefix("data: "))["error"]["error_type"] == "generation"
    assert told[-1] == "data: [DONE]"
    assert fleet.get("/livez").status_code == 200
    assert fleet.get("/metrics").status_code == 200
    eventually(lambda: fleet.get("/health").status_code == 200)
    assert fleet.post("/generate", inputs=QUESTION).status_code == 200
    assert not before & set(fleet.counted("parley_engine_up"))


def test_it_ends_with_all_its_processes(fleet: Fleet) -> None:
    """The last one of this module, as it ends the server."""
    assert fleet.processes("")
    fleet.process.terminate()
    assert fleet.process.wait(START_SECONDS) == 0
    eventually(lambda: not fleet.processes(""))
    assert '"message":"Stopped"' in fleet.log.read_text()


def test_it_ends_where_the_cluster_is_told_to_end_as_well(tmp_path: Path) -> None:
    """As systemd tells all processes, and `timeout` those of the server's process group."""
    with serving(tmp_path) as server:
        eventually(lambda: b"Connected" in server.log.read_bytes() or server.process.poll() is not None)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(START_SECONDS) == 0
        eventually(lambda: not server.processes(""))
    assert "Stopped" in server.log.read_text()


def test_a_model_that_cannot_be_served_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    with serving(tmp_path, "--model-id", "/nowhere/model") as server:
        assert server.process.wait(START_SECONDS) == 1
        assert "`/nowhere/model` is neither a directory nor a hub id" in server.log.read_text()
