"""A server of the embedded model, in processes of its own, for as long as it is asked."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

KEY = "fuzz-Key"
FLAGS = ("--max-total-tokens", "256", "--max-concurrent-requests", "4096")  # short texts, and room for all
PATIENCE = 300.0  # seconds until a server that doesn't load is given up
ENDING = 60.0  # seconds


@contextlib.contextmanager
def server(log: Path | None = None) -> Iterator[str]:
    """Start `parley serve` on a free port and give its address; OSError if it doesn't come up."""
    with contextlib.ExitStack() as stack:
        path = log or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        adapters = stack.enter_context(tempfile.TemporaryDirectory())  # none are there: paths are looked for
        output = stack.enter_context(path.open("w", encoding="utf-8"))
        port = _free_port()
        command = [sys.executable, "-m", "handlers", "serve", "--hostname", "127.0.0.1"]
        arguments = ["--port", str(port), "--api-key", KEY, "--lora-directory", adapters, *FLAGS]
        process = subprocess.Popen([*command, *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(process, f"http://127.0.0.1:{port}", path)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(ENDING)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/health", timeout=PATIENCE).status_code == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            told = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise OSError(f"the server doesn't come up:\n{told}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
