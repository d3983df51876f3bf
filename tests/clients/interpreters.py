"""The clients' scripts, each run by an interpreter that has the client.

A client is looked for with the interpreter that PARLEY_CLIENT_PYTHON_<NAME> names (TEXT_GENERATION,
OPENAI, HUGGINGFACE_HUB), or else with the one that runs the tests; tests of a client that neither has are
skipped. Set the variable where a client pins libraries that the server can't live with. The frameworks, which
are many packages, have the interpreter that PARLEY_CLIENT_PYTHON_FRAMEWORKS names, or none; and the tools
that make clients of the document that of PARLEY_CLIENT_PYTHON_GENERATORS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
FRAMEWORKS_VARIABLE = "PARLEY_CLIENT_PYTHON_FRAMEWORKS"
PATIENCE_SECONDS = 240

Results = dict[str, Any]  # by the name of the case
Ask = Callable[..., Results]  # client, address of the server, names of cases


def run_client(client: str, url: str, names: tuple[str, ...]) -> Results:
    """Run cases of a client's script in its interpreter and return what it printed."""
    done = run_script(interpreter(client), f"{client}_client.py", url, *names)
    assert done.returncode == 0, done.stderr
    printed: Results = json.loads(done.stdout)
    return printed


def frameworks_interpreter() -> str:
    """Return the interpreter that has the frameworks; skip the test if there is none."""
    python = os.environ.get(FRAMEWORKS_VARIABLE)
    if python is None:
        pytest.skip(f"set {FRAMEWORKS_VARIABLE} to an interpreter that has tests/clients/frameworks.txt")
    return python


def run_script(python: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of our scripts with another interpreter."""
    command = [python, str(SCRIPTS / script), *arguments]
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment, check=False
    )


def interpreter(client: str) -> str:
    """Return the interpreter that has the client; skip the test if there is none."""
    variable = f"PARLEY_CLIENT_PYTHON_{client.upper()}"
    python = os.environ.get(variable)
    if python is not None:
        return python
    if importlib.util.find_spec(client) is None:
        pytest.skip(
            f"{client} isn't installed here: install it, or name an interpreter that has it in {variable}"
        )
    return sys.executable


def ask_any(client: str, request: pytest.FixtureRequest, ask: Ask, *names: str) -> Results:
    """Run cases against the server whose fixture the calling one has as its parameter."""
    interpreter(client)
    return ask(client, request.getfixturevalue(request.param), *names)
