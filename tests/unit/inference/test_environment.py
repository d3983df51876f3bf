from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import inference
from inference.environment import child_environment, prepare_environment, temporary_directory
from inference.errors import ModelUnavailable
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


def test_without_a_place_for_temporary_files_it_is_said_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the one that was found before
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [os.environ["TMPDIR"]])
    with pytest.raises(ModelUnavailable, match=r"found in \['.*/gone'\]: .* /tmp, or set TMPDIR to a folder"):
        temporary_directory()
    (tmp_path / "gone").mkdir()
    assert temporary_directory() == str(tmp_path / "gone")
