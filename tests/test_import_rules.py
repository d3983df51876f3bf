"""Who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("handlers", "inference", "openapi", "codegen", "benchmarks", "tests")
WEB = {"handlers", "starlette", "connexion", "uvicorn", "httptools", "fastapi", "httpx", "prometheus_client"}
TENSORS = {"torch", "triton", "safetensors", "transformers"}
LONGEST = 350  # lines of a file; past it, look for the second noun
GENERATED = "GENERATED"


def python_files(*packages: str) -> list[Path]:
    """Return the files of packages, at any depth."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the full names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def breaches(paths: list[Path], forbidden: set[str]) -> list[str]:
    """Return `file imports module` for each import of a forbidden package."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if name.partition(".")[0] in forbidden
    ]


def test_the_rules_see_imports_inside_of_functions(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from torch.nn import Module\n    import connexion.apps as apps\n")
    assert ["torch.nn", "connexion.apps"] == list(imports(file))


def test_the_engine_knows_no_http() -> None:
    assert [] == breaches(python_files("inference"), WEB | {"openapi", "codegen"})


def test_the_handlers_know_no_tensor() -> None:
    assert [] == breaches(python_files("handlers"), TENSORS | {"codegen", "tests", "benchmarks"})


def test_wire_is_pure() -> None:
    outside = {"starlette", "connexion", "uvicorn", "asyncio", "httpx", "socket", "logging"}
    assert [] == breaches(python_files("handlers/wire"), outside)


def test_only_http_knows_connexion() -> None:
    shipped = python_files("handlers", "inference", "openapi")
    others = [path for path in shipped if ROOT / "handlers" / "http" not in path.parents]
    assert [] == breaches(others, {"connexion"})


def test_what_is_shipped_needs_nothing_of_the_repository() -> None:
    shipped = python_files("handlers", "inference", "openapi")
    assert [] == breaches(shipped, {"codegen", "tests", "benchmarks"})


def test_the_contract_is_data() -> None:
    assert [] == breaches(python_files("openapi"), {"handlers", "inference", "connexion", "starlette"})


def test_the_server_starts_on_the_fake_engine_without_torch() -> None:
    code = """
import sys
for name in ("torch", "safetensors"):
    sys.modules[name] = None
from handlers.app import create_app
from handlers.metrics import Metrics
from handlers.service import Service
from handlers.settings import Settings
from inference.fake import fake_client
settings = Settings()
create_app(Service(settings, fake_client(settings.engine_config()), Metrics()))
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("package", OWN)
def test_no_file_is_too_long(package: str) -> None:
    long = {}
    for path in python_files(package):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > LONGEST and GENERATED not in "".join(lines[:5]):
            long[str(path.relative_to(ROOT))] = len(lines)
    assert {} == long
