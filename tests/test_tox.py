"""What `.ci/run` tests in one environment, tox's environments test as well."""

from __future__ import annotations

import re
from configparser import RawConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
POSITIONAL = re.compile(r"\{posargs:([^}]*)\}")


def paths_of_environments() -> dict[str, list[str]]:
    """Return what pytest is given in each environment that `tox` runs by itself."""
    tox = RawConfigParser()
    tox.read(ROOT / "tox.ini")
    names = [name.strip() for name in tox["tox"]["env_list"].split(",")]
    commands = {
        name: tox[f"testenv:{name}"].get("commands", "") or tox["testenv"]["commands"] for name in names
    }
    return {name: " ".join(POSITIONAL.findall(text)).split() for name, text in commands.items()}


def test_each_path_of_an_environment_is_there() -> None:
    given = [path for paths in paths_of_environments().values() for path in paths]
    assert [path for path in given if not (ROOT / path).exists()] == []


def test_each_test_module_runs_in_some_environment() -> None:
    given = [ROOT / path for paths in paths_of_environments().values() for path in paths]
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert len(modules) > 100
    assert [
        str(module.relative_to(ROOT))
        for module in modules
        if not any(path in (module, *module.parents) for path in given)
    ] == []


@pytest.mark.parametrize(
    "directory", ["tests/engine", "tests/faults", "tests/structured", "tests/unit/inference"]
)
def test_what_needs_torch_runs_where_torch_is(directory: str) -> None:
    assert directory in paths_of_environments()["engine"]
