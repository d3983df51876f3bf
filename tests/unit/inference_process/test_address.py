from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from inference.errors import ModelUnavailable
from inference.process.address import PATH_BYTES, Address


@pytest.fixture(autouse=True)
def _usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def test_a_directory_whose_path_is_too_long_for_a_socket_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * PATH_BYTES)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    address = Address()
    assert len(os.fsencode(address.path)) <= PATH_BYTES
    assert long not in address.directory.parents
    address.close()


def test_the_longest_path_that_fits_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room = PATH_BYTES - len("/parley-12345678/engine.sock") - len(str(tmp_path)) - 1
    if room < 1:
        pytest.skip("this machine's directory for tests is too long itself")
    base = tmp_path / ("x" * room)
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    address = Address()
    assert address.directory.parent == base
    assert len(os.fsencode(address.path)) == PATH_BYTES
    address.close()


def test_without_any_directory_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ModelUnavailable, match=r"Permission denied.*set TMPDIR"):
        Address()


def test_without_a_place_for_temporary_files_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(ModelUnavailable, match="set TMPDIR"):
        Address()


def test_what_killed_servers_left_is_removed_and_what_others_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    used = Address()
    left, young = Address(), Address()
    for each in (left, young):  # as the kernel does for a process that is killed
        each.listening.close()
    for each in (used, left):
        os.utime(each.path, (0, 0))
    mine = Address()
    assert sorted(tmp_path.iterdir()) == sorted([used.directory, young.directory, mine.directory])
    for each in (used, young, mine):
        each.close()
    assert not list(tmp_path.iterdir())
