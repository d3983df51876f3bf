"""The port of several API workers: had before anything is started, and open once somebody can answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.unit.handlers.serving.test_workers import FAKE, PATIENCE_SECONDS, pytestmark, server, told, until
from tests.unit.handlers.test_cli import PLAIN, ROOT

__all__ = ["pytestmark"]


def test_nobody_is_let_in_before_somebody_can_answer(tmp_path: Path) -> None:
    begin = f"import pathlib, runpy, sys, time; go = pathlib.Path({str(tmp_path / 'go')!r})"
    late = f"""{begin}
while not go.exists(): time.sleep(0.01)
runpy.run_module("handlers.serving.worker", run_name="__main__", alter_sys=True)
"""
    command = f"staff.command = lambda line: [sys.executable, '-c', {late!r}, str(line)]"
    code = FAKE.replace("sys.exit(", f"from handlers.serving import staff; {command}\nsys.exit(")
    with server(code=code, ready=False) as live:
        until(lambda: bool(live.workers()), live)
        until(lambda: told(live, "Loading ") == 1, live)
        with pytest.raises(httpx.ConnectError):
            live.get("/livez")
        assert told(live, "Listening on ") == 0
        (tmp_path / "go").touch()
        until(lambda: told(live, " Connected") == 1, live)
        assert live.get("/livez").status_code == 200
        assert told(live, "Listening on ") == 1


def test_a_port_in_use_is_told_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = ["--hostname", "127.0.0.1", "--port", port, "--api-workers", "2"]
        other = subprocess.run(
            [sys.executable, "-c", FAKE, *line],
            cwd=ROOT,
            env=PLAIN,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert other.returncode == 1
    assert "address already in use" in other.stdout
    assert "Traceback" not in other.stdout + other.stderr
