from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import inference
from inference.environment import child_environment, prepare_environment
from inference.grammar.stack import STACK_BYTES


def test_waiting_threads_sleep() -> None:
    environ: dict[str, str] = {}
    prepare_environment(environ)
    assert environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_what_is_set_already_stays() -> None:
    environ = {"OMP_WAIT_POLICY": "ACTIVE"}
    prepare_environment(environ)
    assert environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_it_comes_before_torch() -> None:
    code = "import sys, inference.environment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rusts_threads_have_room_for_nested_grammars() -> None:
    environ: dict[str, str] = {}
    prepare_environment(environ)
    assert int(environ["RUST_MIN_STACK"]) == STACK_BYTES


def test_child_finds_the_same_package_before_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(str(inference.__file__)).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", "", root]))
    monkeypatch.setenv("KEPT", "yes")
    environ = child_environment(inference)
    assert environ["PYTHONPATH"].split(os.pathsep) == [root, "/elsewhere"]
    assert environ["KEPT"] == "yes"
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment(inference)["PYTHONPATH"] == root
