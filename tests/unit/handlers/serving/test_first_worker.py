"""The first worker starts before the others, which would only keep it from answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from handlers.serving.worker import ALIVE, READY
from tests.unit.handlers.serving.office import Office, complete, heard, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("word", [ALIVE, READY])
async def test_the_others_start_once_the_first_one_answers(
    doing: Callable[[str], None], tmp_path: Path, word: bytes
) -> None:
    doing(
        f"""
import pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
(folder / str(post.number)).write_bytes(b"")
while not post.number and not (folder / "go").exists():
    time.sleep(0.01)
line.sendall({word + bytes([10])!r})
"""
    )
    office = Office()
    await until(lambda: heard(tmp_path) != [])
    await asyncio.sleep(0.2)
    assert heard(tmp_path) == [b""]
    assert not office.staff.answering.is_set()
    (tmp_path / "go").touch()
    await complete(office)
    assert len(heard(tmp_path)) == 2
    await office.close()


async def test_one_that_stands_still_is_not_waited_for_for_good(
    doing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("handlers.serving.staff.FIRST_SECONDS", 0.3)
    doing(
        f"""
import time
while not post.number:
    time.sleep(0.01)
line.sendall({ALIVE + bytes([10])!r})
time.sleep(60)
"""
    )
    office = Office()
    await until(office.staff.answering.is_set)
    assert len(office.staff._workers) == 2
    assert "API worker 0 doesn't answer after 0.3 s: the others start beside it" in caplog.messages
    await office.close()


@pytest.mark.usefixtures("doing")
async def test_none_starts_any_more_once_all_are_dismissed(doing: Callable[[str], None]) -> None:
    doing("__import__('time').sleep(60)")
    office = Office()
    await until(lambda: len(office.staff._workers) == 1)
    await office.close()
    assert len(office.staff._workers) == 1
