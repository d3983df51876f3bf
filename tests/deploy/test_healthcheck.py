"""The image's health check: whom it takes for the server, and what it reads of how that was started."""

from __future__ import annotations

import http.server
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
LAUNCHER = "/opt/parley/bin/text-generation-launcher"
PYTHON = "/usr/local/bin/python3.11"
SERVER = [PYTHON, LAUNCHER, "--port", "9"]


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    """Return the script as a module."""
    sys.path.insert(0, str(DEPLOY))
    try:
        yield importlib.import_module("healthcheck")
    finally:
        sys.path.remove(str(DEPLOY))


def write_process(processes: Path, number: int, line: list[str], environ: str = "") -> None:
    """Write what the system tells of a process."""
    folder = processes / str(number)
    folder.mkdir()
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in line))
    (folder / "environ").write_text(environ)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
@pytest.mark.parametrize("given", ["flag", "PORT", "AIP_HTTP_PORT"])
def test_it_asks_at_the_port_that_the_server_was_given(
    status: int, code: int, given: str, check: ModuleType
) -> None:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = str(server.server_port)
        line = ["--json-output", *(["--port", port] if given == "flag" else [])]
        assert code == check.main(check.Server(line, {"PORT": "1", given: port}))


def test_a_server_that_does_not_answer_is_not_healthy(
    check: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == check.main(check.Server((), {"PORT": "1"}))
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_shard_of_another_machines_server_is_healthy_while_it_is_there(
    tmp_path: Path, check: ModuleType
) -> None:
    write_process(tmp_path, 1, ["tini", "--", "parley", "shard", "--master-addr", "10.0.0.1"])
    write_process(tmp_path, 7, [PYTHON, "/opt/parley/bin/parley", "shard", "--master-addr", "10.0.0.1"])
    assert 0 == check.main(check.find_server(tmp_path, {"PORT": "1"}))


STARTED = {
    "alone": [SERVER],
    "by its name": [["text-generation-launcher", "--port", "9"]],
    "docker run --init": [["/sbin/docker-init", "--", "text-generation-launcher", "--port", "9"], SERVER],
    "an init whose child is not known": [["tini", "-g", "-p", "SIGTERM", "--", LAUNCHER, "--port", "9"]],
    "a shell": [["sh", "-c", "text-generation-launcher --port 9; true"], SERVER],
    "a shell that names it": [["sh", "/opt/parley", "--port", "8"], SERVER],
    "parley": [["python", "/opt/parley/bin/parley", "serve", "--port", "9"], [*SERVER[:-1], "8"]],
    "python -m": [["python", "-m", "handlers", "serve", "--port", "9"]],
    "python with options": [["python3", "-X", "dev", "-u", "-m", "handlers", "--port", "9"]],
    "a model of its name": [["python", "-m", "handlers", "--model-id", "/models/parley", "--port", "9"]],
    "beside a reader of logs": [["tail", "-F", "/var/log/parley"], SERVER],
    "beside a supervisor": [["/usr/bin/python3", "/usr/bin/supervisord", "-c", "/etc/parley"], SERVER],
    "after a download": [["python", "/opt/parley/bin/parley", "download-weights", "--port", "8"], SERVER],
    "beside a report": [["python", "/opt/parley/bin/parley", "env", "--port", "8"], SERVER],
    "behind an init of more": [["tini", "--", "parley", "check", "--port", "8"], SERVER],
}


@pytest.mark.parametrize("lines", STARTED.values(), ids=STARTED)
def test_the_server_is_found_whoever_started_it_and_whatever_runs_beside_it(
    lines: list[list[str]], tmp_path: Path, check: ModuleType
) -> None:
    for number, line in zip((1, 7, 10), lines, strict=False):  # 10 comes after 7
        write_process(tmp_path, number, line)
    (tmp_path / "sys").mkdir()
    (tmp_path / "3").mkdir()  # a process that ended meanwhile
    assert 9 == check.address_of(check.find_server(tmp_path, {"PORT": "1"})).port


def test_without_a_server_the_containers_variables_count(tmp_path: Path, check: ModuleType) -> None:
    write_process(tmp_path, 1, ["tail", "-F", "/var/log/parley", "--port", "8"])
    assert 5 == check.address_of(check.find_server(tmp_path, {"PORT": "5"})).port


def test_the_servers_own_variables_count_where_they_can_be_read(tmp_path: Path, check: ModuleType) -> None:
    write_process(tmp_path, 1, ["sh", "-c", "PORT=9 parley serve; true"], "PORT=8\0")
    write_process(tmp_path, 7, [PYTHON, "/opt/parley/bin/parley", "serve"], "PORT=9\0HOSTNAME=::1\0")
    settings = check.address_of(check.find_server(tmp_path, {"PORT": "8"}))
    assert ("::1", 9) == (settings.hostname, settings.port)


def test_what_has_become_wrong_beside_the_address_is_no_matter(tmp_path: Path, check: ModuleType) -> None:
    keys = tmp_path / "keys"
    keys.write_text("no key at all\n")
    line = ["--api-keys-file", str(keys), "--model-id", "gone", "--port", "9"]
    assert 9 == check.address_of(check.Server(line, {"PARLEY_API_KEYS_FILE": str(keys)})).port
