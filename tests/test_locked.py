"""The releases that `.ci/run` takes: each requirement has one, within its bounds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = sorted((ROOT / ".ci/locked").glob("*.txt"))
EXTRAS = re.compile(r"'\.\[([a-z,]+)\]'")  # of the line that installs Parley


def wanted(environment: str) -> Iterator[Requirement]:
    """Yield what `.ci/run` asks for in one of its environments."""
    if environment != "parley":
        lines = (ROOT / f"tests/clients/{environment}.txt").read_text().splitlines()
        yield from (Requirement(line) for text in lines if (line := text.partition("#")[0].strip()))
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = EXTRAS.findall((ROOT / ".ci/run").read_text())
    for group in (
        project["dependencies"],
        *(project["optional-dependencies"][each] for each in extras.split(",")),
    ):
        for each in map(Requirement, group):
            if each.name != "parley":
                yield each
            for extra in each.extras if each.name == "parley" else ():
                yield from map(Requirement, project["optional-dependencies"][extra])


def locked(environment: str) -> dict[str, str]:
    """Return the releases of an environment, by name."""
    lines = (ROOT / f".ci/locked/{environment}.txt").read_text().split()
    return {canonicalize_name(name): release for name, _, release in (line.partition("==") for line in lines)}


def test_each_environment_is_locked() -> None:
    clients = {each.stem for each in (ROOT / "tests/clients").glob("*.txt")}
    assert {each.stem for each in LOCKED} == {"parley", *clients}


@pytest.mark.parametrize("environment", [each.stem for each in LOCKED])
def test_a_locked_release_is_what_is_asked_for(environment: str) -> None:
    releases = locked(environment)
    asked = [each for each in wanted(environment) if each.marker is None or each.marker.evaluate()]
    assert len(asked) > 0
    assert [
        f"{each}: {releases.get(canonicalize_name(each.name))}"
        for each in asked
        if not each.specifier.contains(releases.get(canonicalize_name(each.name), "0"), prereleases=True)
    ] == []
