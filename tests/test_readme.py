"""The README and the other pages are true: their commands run, their names exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from codegen import outputs
from handlers import cli
from handlers.settings.table import SETTINGS
from tests.support import LiveServer, live_server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
CURLS = [block for block in BLOCKS if block.startswith("curl")]
SET_UPS = [block for block in BLOCKS if "venv" in block]
ASSUMED = "localhost:3000"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Serve the fake engine, its answers held against the contract."""
    with live_server() as live:
        yield live


def run_curl(block: str, server: LiveServer) -> str:
    """Run a curl command of the README against the server; return what it printed."""
    command = shlex.split(block.replace("\\\n", " ").replace(ASSUMED, f"{server.host}:{server.port}"))
    done = subprocess.run(
        [*command, "--silent", "--show-error", "--fail-with-body"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generate_answers_with_text_and_details(server: LiveServer) -> None:
    answer = json.loads(run_curl(CURLS[1], server))
    assert isinstance(answer["generated_text"], str)
    assert answer["details"]["generated_tokens"] > 0


def test_chat_answers_with_a_message(server: LiveServer) -> None:
    answer = json.loads(run_curl(CURLS[0], server))
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_generate_stream_streams_events(server: LiveServer) -> None:
    events = run_curl(CURLS[2], server).strip().split("\n\n")
    assert all(event.startswith("data:") for event in events)
    assert json.loads(events[-1].removeprefix("data:"))["generated_text"]


def test_every_curl_of_the_readme_was_run() -> None:
    assert len(CURLS) == 3


def test_openais_client_is_answered(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    source = block.replace(ASSUMED, f"{server.host}:{server.port}")
    exec(compile(source, "README.md", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out.strip()


def test_the_port_of_the_examples_is_the_default() -> None:
    (port,) = [setting.default for setting in SETTINGS if setting.attribute == "port"]
    assert f"localhost:{port}" == ASSUMED


@pytest.mark.parametrize("block", SET_UPS)
def test_set_up_installs_what_exists_and_starts_what_is_installed(block: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    create, install, start = (shlex.split(part) for part in block.split("&&"))
    assert create == ["python3.11", "-m", "venv", ".venv"]
    assert install[:3] == [".venv/bin/pip", "install", "-e"]
    extras = re.fullmatch(r"\.\[(.*)\]", install[3])
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    program = start[0].removeprefix(".venv/bin/")
    assert program in ("python", *project["scripts"])


def test_one_command_serves_and_one_tests() -> None:
    starts = [block.rpartition("&&")[2].strip() for block in SET_UPS]
    assert starts == [".venv/bin/parley serve", ".venv/bin/python -m pytest -n 2 --dist loadfile"]


def test_the_serving_command_is_one_that_the_command_line_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []

    def serve(reading: object) -> int:
        served.append(reading)
        return 0

    program, *line = shlex.split(SET_UPS[0].rpartition("&&")[2])
    assert program.endswith("/parley")
    monkeypatch.setitem(sys.modules, "handlers.serving.serve", SimpleNamespace(serve=serve))
    assert cli.main(line) == 0
    assert len(served) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_and_commands_that_pages_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    flags = {name for setting in SETTINGS for name in setting.names} | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", text)) - flags == set()
    assert set(re.findall(r"`parley ([a-z][a-z-]+)", text)) - set(cli.COMMANDS) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_pages_name_exist(page: Path) -> None:
    packages = "openapi|handlers|inference|codegen|tests|benchmarks|docs"
    named = re.findall(rf"`((?:{packages})/[\w./]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_architecture_names_every_package_of_the_server() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = [
        path.parent for package in ("handlers", "inference") for path in (ROOT / package).rglob("__init__.py")
    ]
    assert [name for path in packages if f"`{(name := str(path.relative_to(ROOT)))}`" not in text] == []


def test_what_is_generated_is_up_to_date() -> None:
    assert outputs.check() == []


def test_families_are_as_many_as_were_tried() -> None:
    (counted,) = re.findall(
        r"\| all that are served \| (\d+) of (\d+) \|", (ROOT / "docs" / "models.md").read_text("utf-8")
    )
    assert counted == re.findall(r"decoders, (\d+) of its\s+(\d+) families", README)[0]
