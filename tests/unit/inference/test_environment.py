from __future__ import annotations

import subprocess
import sys

from inference.environment import prepare_environment
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
