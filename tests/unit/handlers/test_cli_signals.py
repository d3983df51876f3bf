"""How `parley serve` ends by signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.ports import free_port
from tests.unit.handlers.test_cli import (
    PLAIN,
    ROOT,
    fake_server,
    json_request,
    post_once_open,
    until_connected,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_running_requests_end_and_exits_0(number: signal.Signals) -> None:
    with fake_server(step_seconds=0.1) as (process, address):
        until_connected(process)
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 8, "details": True}}
        request = json_request(f"{address}/generate_stream", body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            first = answer.readline()
            process.send_signal(number)
            rest = answer.read()
        assert first.startswith(b"data:")
        assert b'"finish_reason"' in rest
        assert b'"error"' not in rest
        assert 0 == process.wait(20)


def test_a_signal_to_the_process_and_to_its_group_is_one() -> None:
    with fake_server(step_seconds=0.1) as (process, address):
        until_connected(process)
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 8}}
        with urllib.request.urlopen(json_request(f"{address}/generate_stream", body), timeout=30) as answer:
            answer.readline()
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)  # or the kernel would make one of both
            process.send_signal(signal.SIGTERM)
            rest = answer.read()
        assert b'"finish_reason"' in rest or b'"generated_text":"' in rest
        assert 0 == process.wait(20)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_what_runs_at_once_and_says_so(numbers: tuple[signal.Signals, ...]) -> None:
    with fake_server(step_seconds=0.1) as (process, address):
        until_connected(process)
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 500, "min_new_tokens": 500}}
        request = json_request(f"{address}/generate_stream", body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.readline()
            process.send_signal(numbers[0])
            assert all(answer.readline() for _ in range(6))  # it goes on, for more than an echo takes
            process.send_signal(numbers[1])
            *_, last = [line for line in answer if line.strip()]
        assert b"The server shuts down" in last
        assert 128 + numbers[-1] == process.wait(20)


def test_a_signal_while_the_model_loads_ends_at_once() -> None:
    port = free_port()
    code = f"""
import sys, time
from handlers import cli
from handlers.serving import serve
from inference.fakes.core import fake_client
def make_engine(settings):
    client = fake_client(settings.engine_config())
    client._core.load = lambda progress: (progress("slow"), time.sleep(60))
    return client
serve.make_engine = make_engine
sys.exit(cli.main(["serve", "--hostname", "127.0.0.1", "--port", "{port}"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, env=PLAIN, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert any(line.endswith(" slow\n") for line in process.stdout)
        assert 503 == post_once_open(f"http://127.0.0.1:{port}/generate", {"inputs": "Hi"})[0]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
        assert time.monotonic() - began < 30  # it did not wait for the load
    finally:
        process.kill()
        process.communicate()
