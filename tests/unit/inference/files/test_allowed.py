"""What may be read of a disk by the name that a client gives: what is below one directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference.errors import AdapterRefused
from inference.files.allowed import allowed_files
from tests.adapter_files import write_adapter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_adapter(tmp_path / "root" / "deep" / "one")
    write_adapter(tmp_path / "rooted")  # begins alike, and is beside it
    return tmp_path / "root"


@pytest.mark.parametrize("path", ["deep/one", "deep/../deep/./one", "{root}/deep/one", "there/one"])
def test_directories_below_are_read_by_any_path(path: str, root: Path) -> None:
    os.symlink(root / "deep", root / "there")
    files = allowed_files("a", path.format(root=root), str(root))
    assert files.directory == (root / "deep" / "one").resolve()
    assert files.name == "a"


def test_the_directory_may_be_a_link_itself(root: Path) -> None:
    os.symlink(root, root.parent / "link")
    assert allowed_files("a", "deep/one", str(root.parent / "link")).numbers == 8
    assert allowed_files("a", str(root.parent / "link/deep/one"), str(root.parent / "link")).numbers == 8


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../rooted", "{root}ed", "{root}", "/", "/etc/passwd", "deep/../../rooted", "out", "a\0",
     "\ud800", "x" * 1025, "../no/such/place"],
)  # fmt: skip
def test_all_else_is_refused_in_the_same_words(path: str, root: Path) -> None:
    os.symlink(root.parent / "rooted", root / "out")
    with pytest.raises(AdapterRefused, match="must be a directory below the one that") as told:
        allowed_files("a", path.format(root=root), str(root))
    assert not told.value.missing


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_a_link_to_elsewhere_is_refused(file: str, root: Path) -> None:
    (root / "deep" / "one" / file).unlink()
    os.symlink(root.parent / "rooted" / file, root / "deep" / "one" / file)
    with pytest.raises(AdapterRefused, match="--lora-directory"):
        allowed_files("a", "deep/one", str(root))


def test_what_is_not_there_or_no_adapter_is_told(root: Path) -> None:
    with pytest.raises(AdapterRefused, match="There is none: deep/two") as told:
        allowed_files("a", "deep/two", str(root))
    assert told.value.missing
    with pytest.raises(AdapterRefused, match="There is none"):
        allowed_files("a", "deep/one/adapter_config.json", str(root))
    with pytest.raises(AdapterRefused, match=r"no `adapter_config.json`") as told:
        allowed_files("a", "deep", str(root))
    assert not told.value.missing
    (root / "deep" / "one" / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(AdapterRefused, match=r"The adapter|adapter_model"):
        allowed_files("a", "deep/one", str(root))


@pytest.mark.parametrize("linked", [False, True])
def test_it_is_told_by_its_name_and_its_path_below_the_directory(root: Path, linked: bool) -> None:
    """Whoever may load adapters needn't know where the server's files are."""
    given, one = root, root / "deep" / "one"
    if linked:
        given = root.parent / "link"
        os.symlink(root, given)
    with pytest.raises(AdapterRefused, match=r"^The adapter `a` can't be loaded: no `[a-z_.]+` in deep$"):
        allowed_files("a", "deep", str(given))
    (one / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    damaged = r"^The adapter `a` can't be loaded: `deep/one/adapter_model.safetensors` is damaged"
    with pytest.raises(AdapterRefused, match=damaged):
        allowed_files("a", "deep/one", str(given))
    (one / "adapter_config.json").write_text("[]")
    with pytest.raises(AdapterRefused, match=r"^The adapter `a` can.t be loaded: deep/one/adapter_con"):
        allowed_files("a", "deep/one", str(given))
