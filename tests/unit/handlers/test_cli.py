"""The command line: one process each, as users start it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import openapi
from handlers import cli
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "connexion", "transformers", "starlette", "prometheus_client", "jsonschema", "yaml")
PLAIN = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}


def run(*line: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `parley`, or some Python code, in the checkout."""
    what = ["-c", code] if code else ["-m", "handlers", *line]
    return subprocess.run(
        [sys.executable, *what],
        cwd=ROOT,
        env={**PLAIN, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from handlers.cli import main
try:
    main(["serve", "--help"])
except SystemExit as end:
    assert end.code == 0
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    answer = run(code=code)
    assert "[]\n" == answer.stderr
    assert "--max-concurrent-requests" in answer.stdout


@pytest.mark.parametrize("line", [(), ("--help",), ("-h",)])
def test_help_names_every_command(line: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.main(line)
    shown = capsys.readouterr().out
    assert [] == [command for command in cli.COMMANDS if command not in shown]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert 0 == ended.value.code
    assert f"usage: parley {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("--max-inputs-tokens", "5"), "there is no flag --max-inputs-tokens; did you mean --max-input-tok"),
        (("serve", "--prot=80"), "there is no flag --prot; did you mean --port?"),
        (("serve", "--ngrok"), "--ngrok true is not supported yet by this version: leave it out"),
        (("serve", "--versoin"), "there is no flag --versoin; did you mean --version?"),
        (("serve", "--max-input", "5"), "there is no flag --max-input"),
        (("serve", "org/model"), "org/model stands behind no flag: a model is named by --model-id"),
        (("sevre",), "there is no command 'sevre'; did you mean serve?"),
        (("serve", "--port"), "argument -p/--port: expected one argument; see parley serve --help"),
        (("serve", "--port", "x"), "--port must be an integer; it is 'x'"),
        (("serve", "--max-total-tokens", "1"), "--max-total-tokens must be from 2 to 2147483647; it is '1'"),
        (
            ("serve", "--quantize", "exl2"),
            "--quantize must be another: weights of exl2 can't be read",
        ),
        (("serve", "--rope-scaling", "linear"), "--rope-scaling linear is not supported yet by this version"),
        (("print-schema", "--port", "1"), "there is no flag --port"),
        (("download-weights",), "name a model, e.g. parley download-weights org/name"),
    ],
)
def test_misuse_is_told_in_one_line_with_exit_code_2(
    line: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MODEL_ID", "HF_MODEL_ID"):
        monkeypatch.delenv(name, raising=False)
    assert 2 == cli.main(line)
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith(f"parley: {message}")


def test_too_few_open_files_are_told_before_anything_fails() -> None:
    line = f"ulimit -n 30; exec {sys.executable} -m handlers serve --port {free_port()}"
    answer = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "the limit of open files must be >= 48. Given: 30; raise it, by `ulimit -n`" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr


def test_print_schema_prints_the_document() -> None:
    assert openapi.load() == json.loads(run("print-schema").stdout)


def test_a_closed_pipe_ends_quietly() -> None:
    line = f"{sys.executable} -m handlers print-schema | head -c 1"
    answer = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ("{", "") == (answer.stdout, answer.stderr)


def test_streams_that_were_closed_lead_nowhere() -> None:
    """Where they stay closed, the first socket is one of them, and what is printed goes to a client."""
    code = (
        "import os, sys; from handlers import cli; cli.main(['--version']); sys.stdout.isatty(); "
        "os.write(3, ' '.join(os.readlink(f'/proc/self/fd/{number}') for number in range(3)).encode())"
    )
    line = f'{sys.executable} -c "{code}" 3>&1 <&- >&- 2>&-'
    answer = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "/dev/null /dev/null /dev/null"


def test_env_shows_what_was_given_and_no_secret() -> None:
    answer = run("env", "--port", "80", API_KEY="s3cret", DISABLE_CUSTOM_KERNELS="true")
    given = "settings given:\n  DISABLE_CUSTOM_KERNELS=true\n  --port 80\n"
    assert given not in answer.stdout  # the table's order counts
    assert "  --port 80\n  API_KEY=...\n" in answer.stdout
    assert "s3cret" not in answer.stdout + answer.stderr
    assert "DISABLE_CUSTOM_KERNELS=true has no effect here" in answer.stderr


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.main([flag])
    assert 0 == cli.launcher([flag])
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("parley ")


@pytest.mark.parametrize(
    "line", [("--port", "3918", "--version"), ("-V", "--port", "x"), ("--env", "--version")]
)
def test_the_version_is_told_wherever_it_is_asked_for(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.launcher(line)
    assert 0 == cli.main(["check", *(flag for flag in line if flag != "--env")])
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("parley ")


@pytest.mark.parametrize("command", ["check", "download-weights", "serve"])
def test_a_model_that_is_not_there_ends_with_a_message_and_no_traceback(command: str) -> None:
    answer = run(command, "--model-id", "/no/such/model", HOSTNAME="127.0.0.1", PORT=str(free_port()))
    assert 1 == answer.returncode
    assert "/no/such/model" in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr


def test_without_torch_the_message_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
from handlers.commands import check
from handlers.settings.reading import read
from handlers.serving import serve
from inference.text import pipeline
pipeline.load_text = lambda model, **_: None
sys.exit(check(read({}, {"PARLEY_ENGINE_PROCESS": "false"})))
"""
    answer = run(code=code)
    assert 1 == answer.returncode
    told = "torch is not installed, and the engine needs it: install Parley with its extra `engine`"
    expected = f"parley: {told}\n"
    assert expected == answer.stderr


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server that answers with the fake engine; gives its process and address."""
    with fake_server() as started:
        yield started


@contextmanager
def fake_server(step_seconds: float = 0.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `parley serve` with the fake engine in the real one's place."""
    port = free_port()
    code = f"""
import sys
from handlers import cli
from handlers.serving import serve
from inference.fakes.core import fake_client
serve.make_engine = lambda settings: fake_client(settings.engine_config(), step_seconds={step_seconds})
sys.exit(cli.launcher(["--hostname", "127.0.0.1", "--port", "{port}", "-g", "20"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, env=PLAIN, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def until_connected(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines that the server logs until it is ready."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.endswith(" Connected\n"):
            return lines
    raise AssertionError("".join(lines))


def json_request(address: str, body: object) -> urllib.request.Request:
    """Return a POST of JSON."""
    return urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})


def post(address: str, body: object) -> tuple[int, bytes]:
    """Send JSON; returns status and body."""
    try:
        with urllib.request.urlopen(json_request(address, body), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def post_once_open(address: str, body: object) -> tuple[int, bytes]:
    """Send JSON as soon as the port is open."""
    for _ in range(200):
        try:
            return post(address, body)
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on {address}")


def test_serve_says_what_it_serves_and_where_and_then_connected(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = server
    lines = until_connected(process)
    told = "".join(lines)
    assert 1 == told.count("Connected")
    assert f"Address {address}" in told
    assert "Serving parley-embedded" in told
    assert "Memory at rest: " in told
    assert 200 == post(f"{address}/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 3}})[0]


def test_a_port_in_use_ends_with_a_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = f"""
import sys
from handlers import cli
from handlers.serving import serve
from inference.fakes.core import fake_client
serve.make_engine = lambda settings: fake_client(settings.engine_config())
sys.exit(cli.main(["--hostname", "127.0.0.1", "--port", "{port}"]))
"""
        answer = run(code=code)
    assert 1 == answer.returncode
    assert "address already in use" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr
