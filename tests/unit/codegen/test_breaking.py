"""The gate as a whole: what it lets pass, what it asks for, and how a release is made."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codegen import announcements, baseline, breaking
from codegen.__main__ import main
from codegen.announcements import AnnouncementError, announced
from codegen.baseline import Contract
from codegen.breaking import judge
from codegen.change import Change, Level, Version, heaviest

KEY = "operation-removed GET /ping"
HEAD = "# History\n\n## Not released yet\n\n"
ITEM = f"- `{KEY}`: SageMaker asks /health\n  now, and so may you."
ANNOUNCED = f"{HEAD}### Breaking\n\n{ITEM}\n\n## 0.1.0\n\nFirst.\n"


@pytest.fixture(scope="module")
def old() -> Contract:
    return Contract.today()


def without_ping(contract: Contract, version: str = "0.1.0") -> Contract:
    document: Any = deepcopy(contract.document)
    del document["paths"]["/ping"]
    document["info"]["version"] = version
    return replace(contract, document=document)


def test_what_was_kept_is_compared_with_what_is_there() -> None:
    kept = Contract.read(baseline.FOLDER)
    assert kept.version <= Contract.today().version
    assert breaking.judge_today(baseline.FOLDER).problems == []


def test_a_contract_that_is_kept_is_read_as_it_is(tmp_path: Path, old: Contract) -> None:
    baseline.keep(tmp_path)
    assert Contract.read(tmp_path).changes(old) == []
    assert judge(old, old, HEAD, str(old.version)).problems == []


def test_an_unannounced_change_fails_and_is_printed_ready_to_paste(old: Contract) -> None:
    verdict = judge(old, without_ping(old, "0.2.0"), HEAD, "0.2.0")
    assert str(verdict.needed) == "0.2.0"
    assert verdict.problems[1:] == [f"- `{KEY}`: {announcements.REASON}"]


def test_what_is_pasted_without_a_reason_is_no_announcement(old: Contract) -> None:
    verdict = judge(old, without_ping(old, "0.2.0"), HEAD, "0.2.0")
    pasted = f"{HEAD}### Breaking\n\n{verdict.problems[1]}\n"
    with pytest.raises(AnnouncementError, match="say why"):
        announced(pasted)


def test_an_announced_change_passes_with_its_version(old: Contract) -> None:
    assert judge(old, without_ping(old, "0.2.0"), ANNOUNCED, "0.2.0").problems == []


def test_a_version_that_is_too_low_fails(old: Contract) -> None:
    (problem,) = judge(old, without_ping(old, "0.1.1"), ANNOUNCED, "0.1.1").problems
    assert problem == "info.version of openapi.yaml is 0.1.1: these changes need 0.2.0 or higher"


def test_two_versions_fail(old: Contract) -> None:
    (problem,) = judge(old, without_ping(old, "0.2.0"), ANNOUNCED, "0.1.0").problems
    assert "pyproject.toml says version 0.1.0, openapi.yaml 0.2.0" in problem


def test_what_is_announced_and_does_not_happen_fails(old: Contract) -> None:
    (problem,) = judge(old, old, ANNOUNCED, "0.1.0").problems
    assert KEY in problem


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("- operation-removed GET /ping: SageMaker asks /health now", "write '- `KEY`: REASON'"),
        ("- `operation-removed GET /ping`", "write '- `KEY`: REASON'"),
        ("- `a b`: for reasons that are good\n- `a b`: for reasons that are good", "twice"),
        ("It goes.", "only items"),
    ],
)
def test_an_announcement_that_cannot_be_read_is_told(item: str, problem: str) -> None:
    with pytest.raises(AnnouncementError, match=problem):
        announced(f"{HEAD}### Breaking\n\n{item}\n")


def test_only_what_is_not_released_is_announced() -> None:
    released = announcements.released(ANNOUNCED, "0.2.0")
    assert announced(ANNOUNCED) == {KEY: "SageMaker asks /health now, and so may you."}
    assert announced(released) == {}
    assert announcements.released(released, "0.3.0").count("## Not released yet") == 1
    with pytest.raises(AnnouncementError, match="already"):
        announcements.released(released, "0.2.0")


@pytest.mark.parametrize(
    ("version", "levels", "needed"),
    [
        ("0.1.4", [], "0.1.4"),
        ("0.1.4", [Level.PATCH], "0.1.5"),
        ("0.1.4", [Level.MINOR], "0.1.5"),
        ("0.1.4", [Level.PATCH, Level.MAJOR, Level.MINOR], "0.2.0"),
        ("1.2.3", [Level.PATCH], "1.2.4"),
        ("1.2.3", [Level.MINOR, Level.PATCH], "1.3.0"),
        ("1.2.3", [Level.MAJOR], "2.0.0"),
    ],
)
def test_the_version_that_changes_need(version: str, levels: list[Level], needed: str) -> None:
    changes = [Change("key", level, "") for level in levels]
    assert str(Version.parse(version).after(heaviest(changes))) == needed


def test_a_version_is_three_numbers() -> None:
    with pytest.raises(ValueError, match="three numbers"):
        Version.parse("1.0")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let releases change a history of their own."""
    file = tmp_path / "CHANGES.md"
    file.write_text(f"{HEAD}New.\n\n## 0.0.9\n\nOld.\n")
    monkeypatch.setattr(announcements, "FILE", file)
    return file


def test_a_release_keeps_the_contract_and_ends_a_section(
    tmp_path: Path, history: Path, old: Contract
) -> None:
    folder, version = tmp_path / "baseline", str(old.version)
    assert breaking.release("9.9.9", folder) != []
    assert not folder.exists()
    assert breaking.release(version, folder) == []
    assert f"## Not released yet\n\nNothing.\n\n## {version}\n\nNew.\n\n## 0.0.9" in history.read_text()
    assert Contract.read(folder).changes(old) == []
    assert breaking.release(version, folder) == [f"{version} is released: {version} isn't higher"]


def test_a_version_that_nobody_has_got_is_kept_again(tmp_path: Path, history: Path, old: Contract) -> None:
    baseline.keep(tmp_path)
    kept = tmp_path / baseline.OPENAPI
    kept.write_text(kept.read_text().replace("\n  /ping:\n", "\n  /pong:\n"))
    assert breaking.release_again("9.9.9", tmp_path) != []
    assert "/pong" in Contract.read(tmp_path).document["paths"]
    assert breaking.release_again(str(old.version), tmp_path) == []
    assert Contract.read(tmp_path).changes(old) == []
    history.write_text(ANNOUNCED)
    (problem,) = breaking.release_again(str(old.version), tmp_path)
    assert "take them into its own section" in problem


def test_the_command_tells_the_changes_and_fails(
    tmp_path: Path, history: Path, old: Contract, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline.keep(tmp_path)
    kept = (tmp_path / baseline.OPENAPI).read_text().replace("\n  /ping:\n", "\n  /pong:\n")
    (tmp_path / baseline.OPENAPI).write_text(kept)
    assert main(["breaking", "--against", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "major operation-removed GET /pong: it isn't there any more\n" in printed
    assert "minor operation-added GET /ping: it is new\n" in printed
    assert "was released" in printed
    assert main(["breaking", "--against", str(tmp_path / "absent")]) == 1
    history.write_text(f"{HEAD}### Breaking\n\n- nothing\n")
    assert main(["breaking", "--against", str(tmp_path)]) == 1
    assert "openapi/CHANGES.md: under '### Breaking'" in capsys.readouterr().out
