"""Measure how long the HTTP layer takes from the start of its process to the first answer.

    python -m benchmarks.startup [--rounds 11]

The server is a process of its own on the fake engine, which loads in no time; what a model takes comes on
top. It is asked over loopback, again and again, from the moment its process is started. The median of the
rounds counts, after one that fills Python's caches. Goal: 1.5 s.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks import report
from benchmarks.machine import RESULTS, about, machine

PAUSE_SECONDS = 0.002  # between two attempts to connect
PATIENCE_SECONDS = 60.0
BODY = json.dumps({"inputs": "Hi", "parameters": {"max_new_tokens": 1}})
SERVER = """
import sys, time
from functools import partial
from handlers.app import create_app
from handlers.http.server import listen, run
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
imported = time.monotonic()
settings = Settings()
engine = fake_client(settings.engine_config())
app = create_app(Service(settings, engine, Metrics()))
print(imported, time.monotonic(), flush=True)
run(app, settings, listen("127.0.0.1", int(sys.argv[1])), partial(engine.drain, 0.0))
"""


@dataclass(frozen=True, slots=True)
class Start:
    """When what had been reached, in seconds since the process was started."""

    imported: float  # all modules
    built: float  # the contract read, its schemas compiled, its routes made
    answered: float  # a request that generates a token


def main() -> None:
    """Measure, print the medians and write them down."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds: int = parser.parse_args().rounds
    starts = [start() for _ in range(rounds + 1)][1:]
    stages = [asdict(each) for each in starts]
    medians = {name: round(statistics.median(each[name] for each in stages), 3) for name in stages[0]}
    worst = round(max(each.answered for each in starts), 3)
    print(f"{medians}, the slowest of {rounds} {worst} s")
    written = {**about(), "rounds": rounds, "medians": medians, "slowest": worst}
    (RESULTS / f"startup-{machine()}.json").write_text(json.dumps(written, indent=2) + "\n")
    report.write()


def start() -> Start:
    """Start a server, ask it until it answers, and end it; raises RuntimeError if it doesn't."""
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        answered = _first_answer(server, port, begun + PATIENCE_SECONDS)
    finally:
        server.send_signal(signal.SIGTERM)
        told, complaints = server.communicate(timeout=PATIENCE_SECONDS)
    if answered is None:
        raise RuntimeError(f"the server didn't answer: {complaints}")
    imported, built = (float(moment) - begun for moment in told.split())
    return Start(imported, built, answered - begun)


def _first_answer(server: subprocess.Popen[str], port: int, deadline: float) -> float | None:
    """Return when the first request was answered; None if the server ended or the time was over before."""
    while server.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("POST", "/generate", BODY, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except OSError:
            answer = None
        finally:
            connection.close()
        if answer is not None and answer.status == 200:
            return time.monotonic()
        time.sleep(PAUSE_SECONDS)
    return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
