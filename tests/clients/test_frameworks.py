"""Frameworks that users put before a server: what each is used for works, on the model of our own."""

from __future__ import annotations

import pytest

from tests.clients.interpreters import frameworks_interpreter, run_script

pytestmark = pytest.mark.slow
# framework: whose API its checks speak, by package
MODES = {
    "openai": {("openai", "openai")},
    "responses": {("langchain-openai", "openai"), ("openai-agents", "openai")},
    "anthropic": {("anthropic", "anthropic"), ("litellm", "anthropic")},
    "langchain": {("langchain-openai", "openai"), ("langchain-huggingface", "tgi")},
    "llama_index": {
        ("llama-index-llms-openai-like", "openai"),
        ("llama-index-llms-huggingface-api", "tgi"),
    },
    "litellm": {("litellm", "openai"), ("litellm", "tgi")},
    "instructor": {("instructor", "openai")},
    "outlines": {("outlines", "openai"), ("outlines", "tgi")},
}


@pytest.fixture(scope="session")
def python() -> str:
    return frameworks_interpreter()


@pytest.mark.parametrize("framework", MODES)
def test_every_check_of_a_framework_succeeds(framework: str, python: str, embedded_server: str) -> None:
    done = run_script(python, "frameworks", embedded_server, framework)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    lines = [line.split(maxsplit=4) for line in done.stdout.splitlines()]
    assert {(package, mode) for package, _, mode, _, _ in lines} == MODES[framework]
    assert all(outcome == "ok" for *_, outcome in lines), done.stdout
