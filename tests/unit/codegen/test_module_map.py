"""The page of modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codegen import module_map

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def page() -> str:
    return module_map.render()[module_map.PAGE]


def test_every_module_of_the_server_has_its_line(page: str) -> None:
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for package in ("handlers", "inference", "openapi"):
        for path in (ROOT / package).rglob("[!_]*.py"):
            assert f"* `{path.name}`: " in sections[str(path.parent.relative_to(ROOT))]


def test_every_line_is_a_sentence(page: str) -> None:
    lines = [line for line in page.splitlines() if line.startswith("* ")]
    assert len(lines) > 500
    assert [line for line in lines if not re.fullmatch(r"\* `[\w./]+`: \S.{8,}[.?]", line)] == []


def test_a_package_tells_what_it_imports_of_others() -> None:
    imported = module_map.imported(ROOT / "inference" / "scheduling")
    assert {"inference/kv_cache", "inference/sequences"} <= imported
    assert "inference/scheduling" not in imported
    assert "inference/engine" not in imported
