"""docs/clients.md is true: its commands and its Python run against a server, with a key and without."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.interpreters import SCRIPTS, interpreter
from tests.support import LiveServer, live_server

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
ASSUMED = "localhost:3000"
KEY = "secret"
BODIES = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
# sections of Python, by title: their blocks go on from each other
SECTIONS = {
    title: "\n".join(blocks)
    for title, body in BODIES.items()
    if (blocks := re.findall(r"```python\n(.*?)```", body, re.DOTALL))
}
CURLS = [block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if block.startswith("curl")]
HERE = {"OpenAI, Python": "openai", "huggingface_hub": "huggingface_hub"}  # by what each needs
OWN_INTERPRETER = {"text_generation, TGI's own client": "text_generation"}
FRAMEWORKS = {  # by the script that tests each
    "Anthropic, Python": "anthropic",
    "LangChain": "langchain",
    "LlamaIndex": "llama_index",
    "LiteLLM": "litellm",
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Serve the fake engine, its answers held against the contract."""
    with live_server() as live:
        yield live


@pytest.fixture(scope="module")
def locked_server() -> Iterator[LiveServer]:
    """Serve it to those who have the key."""
    with live_server(api_key=KEY) as live:
        yield live


def addressed(block: str, server: LiveServer) -> str:
    """Return a block with the server's address in place of the page's."""
    return block.replace(ASSUMED, f"{server.host}:{server.port}")


def run_here(title: str, source: str) -> None:
    """Run a section in this process, which is quicker than another that has to import its client."""
    exec(compile(source, title, "exec", dont_inherit=True), {"__name__": "page"})


def run(command: list[str]) -> str:
    """Run a command; return what it printed."""
    environment = {**os.environ, "KEY": KEY, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("title", HERE)
def test_code_runs_and_prints_something(
    title: str, server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(HERE[title])
    run_here(title, addressed(SECTIONS[title], server))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("title", HERE)
def test_code_runs_with_a_key_where_one_is_asked_for(title: str, locked_server: LiveServer) -> None:
    pytest.importorskip(HERE[title])
    source = addressed(SECTIONS[title], locked_server)
    given = source.replace('api_key="-"', f'api_key="{KEY}"').replace('token="-"', f'token="{KEY}"')
    assert given != source
    run_here(title, given)


@pytest.mark.parametrize("title", sorted({*OWN_INTERPRETER, *FRAMEWORKS}))
def test_code_of_clients_that_live_elsewhere_compiles(title: str) -> None:
    compile(SECTIONS[title], title, "exec", dont_inherit=True)


@pytest.mark.parametrize("title", OWN_INTERPRETER)
def test_code_of_a_client_with_an_interpreter_of_its_own_runs_there(title: str, server: LiveServer) -> None:
    python = interpreter(OWN_INTERPRETER[title])
    assert run([python, "-c", addressed(SECTIONS[title], server)]).strip()


@pytest.mark.parametrize("title", FRAMEWORKS)
def test_code_of_a_framework_says_what_its_own_test_says(title: str) -> None:
    """The frameworks' tests run; to import them once more would take half a minute."""
    script = (SCRIPTS / "frameworks" / f"with_{FRAMEWORKS[title]}.py").read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(SECTIONS[title])))
    said = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    said -= {"end"}  # of print
    said |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    said |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    said |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {word for word in said if not re.search(rf"\b{re.escape(word)}\b", script)} == set()


def test_every_section_with_code_is_known() -> None:
    assert {*HERE, *OWN_INTERPRETER, *FRAMEWORKS} == SECTIONS.keys()


@pytest.mark.parametrize("block", CURLS)
def test_commands_are_answered(block: str, server: LiveServer, locked_server: LiveServer) -> None:
    wanted = locked_server if "$KEY" in block else server
    command = f"{addressed(block, wanted).strip()} --silent --show-error --fail-with-body"
    assert "choices" in run(["sh", "-c", command])


def test_one_command_goes_without_a_key_and_one_with_it() -> None:
    assert ["$KEY" in block for block in CURLS] == [False, True]


def test_any_name_of_a_model_is_answered_and_given_back(server: LiveServer) -> None:
    asked = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}
    served = server.get("/info").json()["model_id"]
    for name, told in (("another", "another"), ("tgi", served)):
        answer = server.post("/v1/chat/completions", {**asked, "model": name})
        assert (answer.json()["model"], "x-ignored-parameters" in answer.headers) == (told, False)
    completed = server.post("/v1/completions", {"prompt": "Hello!", "max_tokens": 5, "model": "another"})
    assert (completed.json()["model"], completed.headers["x-ignored-parameters"]) == (served, "model")


@pytest.mark.parametrize("path", ["/health", "/info", "/metrics", "/v1/models"])
def test_what_is_told_to_be_open_is_open(path: str, locked_server: LiveServer) -> None:
    assert locked_server.get(path).status_code == 200
