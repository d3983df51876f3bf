"""A server whose log nobody reads: it serves on, says later what it didn't say, and ends in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import httpx
import pytest

from tests.ports import free_port
from tests.unit.handlers.test_cli import PLAIN, ROOT

pytestmark = pytest.mark.skipif(find_spec("fcntl") is None, reason="the engine needs descriptors to inherit")

PATIENCE_SECONDS = 60
CODE = """
import sys
from functools import partial
from handlers import cli
from handlers.serving import logs
from inference.process import spawned
from inference.process.supervision import EngineProcess
from tests.unit.inference_process.fake_engine import PROGRAM
logs.WAITING_BYTES = 20_000
spawned.SpawnedCore.__init__.__defaults__ = (partial(EngineProcess, program=PROGRAM),)
sys.exit(cli.launcher(sys.argv[1:]))
"""
ENOUGH = 600  # requests, of about 200 bytes in the log each: a pipe holds 64 kB


def test_a_log_that_nobody_reads_holds_up_nothing() -> None:
    port = free_port()
    command = [sys.executable, "-c", CODE, "--hostname", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**PLAIN, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
            until_ready(client)
            ask(client, ENOUGH)
            assert dropped(client) > 0
            read = b""
            while b"lines of this log were dropped" not in read:
                read += os.read(process.stdout.fileno(), 65_536)
            ask(client, ENOUGH)  # and on
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert time.monotonic() < deadline
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.ConnectError:
            pass  # it isn't there yet
        time.sleep(0.1)


def ask(client: httpx.Client, count: int) -> None:
    assert all(client.get("/livez").status_code == 200 for _ in range(count))


def dropped(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith("parley_log_dropped_lines ")]
    return float(found.rpartition(" ")[2])
