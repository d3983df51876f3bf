"""What is told of a download, by `parley download-weights` from a hub on this machine, and of bars alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inference.files import downloads
from inference.files.downloads import Download, Wanted, size
from tests.fake_hub import FakeHub, blob, fake_hub

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 3_000_000,
    "tokenizer.json": b"{ }",
    "README.md": b"not asked for",
}
PROGRAM = """
import sys
from inference.files import downloads
downloads.TELL_SECONDS, downloads.LOOK_SECONDS = 0.25, 0.02
from handlers import cli
sys.exit(cli.main(["download-weights", "org/name"]))
"""


def download(hub: FakeHub, cache: Path) -> tuple[int, list[str]]:
    """Return the exit code, and the lines of the output."""
    environ = {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ, "HF_HUB_DISABLE_XET": "1"},
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_download_is_told_as_it_begins_now_and_then_and_as_it_ends(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / blob(FILES["tokenizer.json"])).write_bytes(FILES["tokenizer.json"])
    with fake_hub(FILES, seconds=1.0) as hub:
        code, lines = download(hub, tmp_path)
        again = download(hub, tmp_path)
    begins, *between, ends, there = lines[1:]
    assert (code, lines[0]) == (0, "Looking for org/name in the hub's cache and on the hub")
    assert begins == "Downloading org/name: 2 files, 3.0 MB"
    assert 1 <= len(between) <= 8
    for line in between:
        assert re.fullmatch(r"Downloading org/name: \d\S* [kM]?B of 3\.0 MB, \d\S* [kM]?B/s", line), line
    assert re.fullmatch(r"Downloaded org/name: 3\.0 MB in [1-9]\d*\.\d s", ends)
    assert there.startswith("org/name is in ")
    assert again == (0, [lines[0], there])  # nothing is downloaded, and nothing told


class Hub(Wanted):
    """Says at once what is missing."""

    def __init__(self, told: tuple[int, int] | None, cache: Path) -> None:
        super().__init__("org/name", None, cache, ["*"], [])
        self._told = told

    def missing(self) -> tuple[int, int] | None:
        return self._told


def seen(told: tuple[int, int] | None, cache: Path, *, fails: bool = False, **bar: Any) -> list[str]:
    lines: list[str] = []
    try:
        with Download(Hub(told, cache), lines.append) as download:
            transfer = download.bars(total=0, unit="B", unit_scale=True, name="huggingface_hub.transfer")
            written = download.bars(total=0, unit="B", disable=None)
            files = download.bars(total=7, desc="Fetching 7 files")
            for each in (transfer, written):
                each.total += 4000
            files.update(7)
            transfer.update(1500)
            written.update(2000)
            time.sleep(0.15)
            assert not fails, "no way"
    except AssertionError:
        pass
    return lines


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(downloads, "TELL_SECONDS", 0.1)


def test_of_two_bars_the_one_that_is_further_counts(tmp_path: Path) -> None:
    begins, between, ends = seen((1, 4000), tmp_path)
    assert begins == "Downloading org/name: 1 file, 4.0 kB"
    assert between.startswith("Downloading org/name: 2.0 kB of 4.0 kB, ")
    assert ends.startswith("Downloaded org/name: 2.0 kB in 0.")


def test_where_the_hub_does_not_say_what_there_is_the_lines_do_without(tmp_path: Path) -> None:
    begins, between, _ = seen(None, tmp_path)
    assert begins == "Downloading org/name"
    assert between.startswith("Downloading org/name: 2.0 kB, ")


def test_a_hub_that_does_not_list_sizes_costs_the_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub(FILES) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        wanted = Wanted("org/name", None, tmp_path, ["*.json", "*.md"], ["tok*"])
        assert wanted.missing() == (2, len(FILES["config.json"]) + len(FILES["README.md"]))
        hub.lists = False
        assert wanted.missing() is None


def test_a_download_that_breaks_off_is_told(tmp_path: Path) -> None:
    assert seen((1, 4000), tmp_path, fails=True)[-1] == (
        "The download of org/name broke off after 2.0 kB of 4.0 kB"
    )


def test_what_is_in_the_cache_is_not_told(tmp_path: Path) -> None:
    lines: list[str] = []
    with Download(Hub((1, 1), tmp_path), lines.append) as download:
        download.bars(total=0, unit="B")
        download.bars(total=3, desc="Fetching 3 files").update(3)
        time.sleep(0.05)
    assert lines == []


def test_sizes_are_written_as_people_write_them() -> None:
    assert [size(n) for n in (0, 999, 1000, 16_060_000_000, 2.5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "16.1 GB",
        "2.5 TB",
    ]
