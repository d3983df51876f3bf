"""One server, from its start to its end, with a load client beside it."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.serving.client import Job
from benchmarks.serving.processes import Watch, proportional_mb, spent, tree
from benchmarks.serving.servers import ROOT, Server
from benchmarks.serving.workloads import Words, Workload

START_SECONDS = 400
STOP_SECONDS = 15
REQUEST_SECONDS = 120


class ServerFailed(Exception):
    """A server didn't start, or a request of a workload failed."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    server: Server
    model: str
    folder: Path
    port: int
    pid: int
    watch: Watch
    start_seconds: float

    def measure(self, workload: Workload, prompts: list[str]) -> dict[str, Any]:
        """Send the prompts and return what came back, with what the processes have spent meanwhile."""
        body = self.server.body(self.model, self.folder, workload.output)
        job = Job(self.port, body, prompts, workload.clients, workload.output, REQUEST_SECONDS)
        pids = tree(self.pid)
        self.watch.take_peak()
        before, own = spent(pids), time.process_time()
        answer = _client(job)
        after = spent(tree(self.pid))
        wall, server = after.at - before.at, after.server - before.server
        # the client counts its own loop only; that its interpreter starts is nobody's load
        ours = answer["cpu"] + answer.pop("idle_cpu") + time.process_time() - own
        return {
            **answer,
            "server_cpu": server,
            "other_share": max(0.0, after.busy - before.busy - server - ours) / wall,
            "stolen_share": (after.stolen - before.stolen) / wall,
            "peak_mb": self.watch.take_peak(),
            "pss_mb": proportional_mb(tree(self.pid)),
        }

    def warm_up(self, words: Words, workload: Workload) -> None:
        """Send a few short requests; raise ServerFailed where one fails."""
        prompts = words.warm_up(workload)
        body = self.server.body(self.model, self.folder, 8)
        job = Job(self.port, body, prompts, len(prompts), 8, REQUEST_SECONDS)
        if failures := _client(job)["failures"]:
            raise ServerFailed(f"the first requests failed: {failures[0]}")


@contextmanager
def running(server: Server, model: str, folder: Path, log: Path) -> Iterator[Running]:
    """Start a server, yield it when it answers, and end it with all its children."""
    port, began = _free_port(), time.monotonic()
    command = shlex.split(server.filled(server.command, model, folder, port))
    extra = {name: server.filled(value, model, folder) for name, value in server.environment.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(folder / command[0]), *command[1:]],
            cwd=ROOT if server.ours else folder,
            env={**_environment(), **extra},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    watch = Watch(process.pid)
    try:
        _wait_until_healthy(process, port, log)
        yield Running(server, model, folder, port, process.pid, watch, time.monotonic() - began)
    finally:
        watch.stop()
        _stop(process)


def _environment() -> dict[str, str]:
    """Return our own environment without what would hold a server's threads down."""
    threads = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(threads)}


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not _healthy(port):
        if process.poll() is not None or time.monotonic() > until:
            raise ServerFailed(f"didn't start: ...{log.read_text(errors='replace')[-400:]}")
        time.sleep(0.25)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    pids = tree(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pids = tree(process.pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _client(job: Job) -> dict[str, Any]:
    """Run the load client in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serving.client"]
    before = os.times()
    done = subprocess.run(
        command, cwd=ROOT, input=orjson.dumps(asdict(job)), capture_output=True, check=False
    )
    after = os.times()
    if done.returncode:
        raise ServerFailed(f"the load client ended: {done.stderr.decode(errors='replace')[-400:]}")
    answer: dict[str, Any] = orjson.loads(done.stdout)
    children = after.children_user + after.children_system - before.children_user - before.children_system
    answer["idle_cpu"] = max(0.0, children - answer["cpu"])
    return answer


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
