"""Servers on real sockets, for the clients to talk to."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from handlers.app import create_app
from handlers.http.server import server_config
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.config import EMBEDDED_MODEL
from inference.fakes.core import fake_client
from inference.fakes.vision import FAKE_VISION
from tests.clients.interpreters import Ask, Results, run_client
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 100
MAX_TOTAL_TOKENS = 512  # TGI's own client test asks for 10,000 tokens and expects a refusal


@pytest.fixture(scope="session")
def fake_server() -> Iterator[str]:
    """Serve the fake engine; give the address."""
    with in_thread(Settings(hostname="127.0.0.1", max_total_tokens=MAX_TOTAL_TOKENS), {}) as url:
        yield url


@pytest.fixture(scope="session")
def seeing_server() -> Iterator[str]:
    """Serve a fake engine that sees; give the address."""
    with in_thread(Settings(hostname="127.0.0.1"), {"vision": FAKE_VISION}) as url:
        yield url


@pytest.fixture(scope="session")
def stepping_server() -> Iterator[str]:
    """Serve a fake engine whose texts grow side by side; give the address."""
    with in_thread(Settings(hostname="127.0.0.1"), {"step_seconds": 0.001}) as url:
        yield url


@pytest.fixture(scope="session")
def narrow_server() -> Iterator[str]:
    """Serve the fake engine with one place and a key; prompts with `please fail` do, after three tokens."""
    settings = Settings(hostname="127.0.0.1", max_concurrent_requests=1, api_key="secret")
    fake = {
        "fail_prompts": ["please fail"],
        "fails_after": 3,
        "replies": {"long": "x" * 200},
        "step_seconds": 0.02,
    }
    with in_thread(settings, fake) as url:
        yield url


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[str]:
    """Serve the model that ships with Parley, with the command that users start; give the address."""
    if not (EMBEDDED_MODEL / "model.safetensors").exists():
        pytest.skip("the embedded model isn't there: train it with codegen/embedded")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch isn't installed: install Parley with its extra `engine`")
    port = free_port()
    command = [sys.executable, "-m", "handlers", "serve", "--hostname", "127.0.0.1", "--port", str(port)]
    command += ["--max-total-tokens", str(MAX_TOTAL_TOKENS), "--compute-threads", "1"]
    # the server refuses variables of ours that it doesn't know
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARLEY_")}
    process = subprocess.Popen(command, cwd=ROOT, env=environment | {"OMP_WAIT_POLICY": "PASSIVE"})
    try:
        yield until_healthy(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def ask() -> Ask:
    """Return a function that runs a client's cases against a server, each combination once."""
    seen: dict[tuple[str, ...], Results] = {}

    def results(client: str, url: str, *names: str) -> Results:
        key = (client, url, *names)
        if key not in seen:
            seen[key] = run_client(client, url, names)
        return seen[key]

    return results


@contextmanager
def in_thread(settings: Settings, fake: dict[str, Any]) -> Iterator[str]:
    """Serve the fake engine from a thread of this process; give the address."""
    service = Service(settings, fake_client(settings.engine_config(), **fake), Metrics())
    server = uvicorn.Server(server_config(create_app(service), settings))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield until_healthy(f"http://127.0.0.1:{listening.getsockname()[1]}", None)
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)


def until_healthy(url: str, process: subprocess.Popen[bytes] | None) -> str:
    """Wait until the server at `url` is ready; return the address."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, "the server ended before it was ready"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_SECONDS):
                return url
        except urllib.error.HTTPError as error:  # 503 while the model loads
            error.close()
        except urllib.error.URLError:  # not listening yet
            pass
        time.sleep(0.05)
    raise AssertionError(f"the server at {url} wasn't ready within {PATIENCE_SECONDS} s")
