from __future__ import annotations

import subprocess
import sys

from inference.environment import prepare_environment


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
