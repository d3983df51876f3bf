"""What is generated is what the contract says: an edit of either alone is seen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen import outputs
from codegen.__main__ import main

ROOT = Path(__file__).parents[3]
COPIED = (
    "benchmarks",
    "codegen",
    "deploy",
    "docs",
    "handlers",
    "inference",
    "openapi",
    "tests",
    "pyproject.toml",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is generated, what it is generated from, and what generates it."""
    copy = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.safetensors", "results")
            shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def check(tree: Path) -> tuple[int, str]:
    """Run the check as CI does, in the copy."""
    command = [sys.executable, "-m", "codegen", "outputs", "--check"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_is_committed_is_what_is_generated(tree: Path) -> None:
    assert check(tree) == (0, "every generated file is what the contract says\n")


def test_an_edit_of_each_generated_file_is_seen(tree: Path) -> None:
    names = [path.relative_to(ROOT) for path in outputs.render()]
    before = {name: (tree / name).read_text() for name in names}
    for name, text in before.items():
        (tree / name).write_text(text.replace("\n", "\n\n", 1))
    code, printed = check(tree)
    for name, text in before.items():
        (tree / name).write_text(text)
    assert code == 1
    assert printed.splitlines() == [
        f"{name} is not what the contract says: run python -m codegen" for name in names
    ]


@pytest.mark.parametrize(
    ("source", "old", "new", "stale"),
    [
        ("openapi/openapi.yaml", "x-default: 1.0\n", "x-default: 2.0\n", "docs/api.md"),
        ("openapi/openapi.yaml", "operationId: ping\n", "operationId: pong\n", "handlers/routes/protocol.py"),
        ("openapi/openapi.yaml", "[length, eos_token,", "[eos_token,", "handlers/wire/types.py"),
        ("openapi/metrics.yaml", "unit: generations", "unit: texts", "docs/metrics.md"),
        ("openapi/compatibility/openai.yaml", "There is one tier.", "None.", "docs/compatibility.md"),
        ("handlers/settings/table.py", '"port to listen on"', '"the port"', "docs/settings.md"),
    ],
)
def test_an_edit_of_the_contract_alone_is_seen(
    tree: Path, source: str, old: str, new: str, stale: str
) -> None:
    text = (tree / source).read_text()
    assert old in text
    (tree / source).write_text(text.replace(old, new))
    code, printed = check(tree)
    (tree / source).write_text(text)
    assert code == 1
    assert f"{stale} is not what the contract says: run python -m codegen" in printed.splitlines()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Generate one page of a tree of its own."""
    page = tmp_path / "docs/page.md"
    text = f"<!-- {outputs.MARK}` from a test. -->\n"
    monkeypatch.setattr(outputs, "ROOT", tmp_path)
    monkeypatch.setattr(outputs, "GENERATORS", (lambda: {page: text},))
    return page


def test_what_is_missing_is_told_and_written(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["outputs", "--check"]) == 1
    assert capsys.readouterr().out == "docs/page.md is not what the contract says: run python -m codegen\n"
    assert main([]) == 0
    assert capsys.readouterr().out == "wrote docs/page.md\n"
    assert outputs.check() == []
    assert outputs.write() == []


def test_other_ends_of_lines_are_an_edit(page: Path) -> None:
    outputs.write()
    page.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    assert outputs.check() == ["docs/page.md is not what the contract says: run python -m codegen"]
    assert outputs.write() == [page]
    assert outputs.check() == []


def test_what_is_not_generated_any_more_is_told_and_removed(page: Path) -> None:
    outputs.write()
    stray, other = page.with_name("stray.md"), page.with_name("other.md")
    stray.write_text(page.read_text())
    other.write_text("Written by hand.\n")
    assert outputs.check() == ["docs/stray.md is not generated any more: run python -m codegen"]
    assert outputs.write() == [stray]
    assert not stray.exists()
    assert other.exists()


def test_what_is_written_by_hand_into_a_generated_folder_is_told_and_removed(page: Path) -> None:
    outputs.write()
    by_hand = page.parents[1] / outputs.GENERATED[0] / "conftest.py"
    beside = by_hand.parents[1] / "conftest.py"
    for path in (by_hand, beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""Written by hand."""\n')
    assert outputs.check() == [
        f"{outputs.GENERATED[0]}/conftest.py is not generated any more: run python -m codegen"
    ]
    assert outputs.write() == [by_hand]
    assert beside.exists()


def test_one_command_runs_every_check(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    page.parent.mkdir()
    page.write_text("edited by hand")
    assert main(["--check"]) == 1
    outputs.write()
    assert main(["--check"]) == 0
