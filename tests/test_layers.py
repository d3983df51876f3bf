"""Which package of the engine may import which: each imports what stands before it, and nothing behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "inference"

# Packages of one line may import each other. Those of `inference` itself, the vocabulary, all may import.
LAYERS = (
    ("kv_cache",),
    ("ipc",),
    ("grammar",),
    ("tools",),
    ("thoughts",),
    ("files", "quantised"),
    ("text",),
    ("sequences",),
    ("kernels",),
    ("sampling",),
    ("planning",),
    ("models",),
    ("recurrent",),
    ("cpu",),
    ("levels",),
    ("encoded",),
    ("vision",),
    ("shards",),
    ("gpu", "kernels/gpu"),
    ("loading",),
    ("scheduling",),
    ("engine",),
    ("process",),
    ("frontend",),
    ("fakes",),
)
RANKS = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}


def imports(path: Path) -> Iterator[str]:
    """Yield the names that a file imports when it runs: not those that only type checkers read."""
    hidden: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            hidden |= {id(inner) for each in node.body for inner in ast.walk(each)}
        elif id(node) in hidden:
            continue
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def package_of(name: str) -> str:
    """Return the package of the engine that a dotted name is in, "" for the engine itself."""
    path = ROOT.joinpath(*name.split("."))
    while not (path / "__init__.py").is_file():
        path = path.parent
    return "" if path == ENGINE else str(path.relative_to(ENGINE))


def breaches(package: str) -> list[str]:
    """Return what a package imports of those behind it."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ENGINE / package).glob("*.py"))
        for name in imports(path)
        if name.startswith("inference.") and RANKS.get(package_of(name), -1) > RANKS[package]
    ]


def test_every_package_of_the_engine_has_its_place() -> None:
    found = {str(path.parent.relative_to(ENGINE)) for path in ENGINE.rglob("__init__.py")}
    assert found - {"."} == set(RANKS)


@pytest.mark.parametrize("package", RANKS)
def test_a_package_imports_nothing_of_those_behind_it(package: str) -> None:
    assert breaches(package) == []


def test_a_breach_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANKS, "scheduling", len(LAYERS))
    assert "inference/engine/step.py imports inference.scheduling.scheduler.Scheduler" in breaches("engine")


def test_what_only_type_checkers_read_is_no_import(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("if TYPE_CHECKING:\n    import inference.engine\nelse:\n    import inference.types\n")
    assert list(imports(file)) == ["inference.types"]
