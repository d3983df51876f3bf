"""Errors that nobody handles come out of the log, where Python would write them to standard error."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from inference import last_resorts
from inference.last_resorts import CarefulHandler, Untold
from inference.outline import outline

SECRET = "the-lighthouse-keeper"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the hooks back as they were."""
    for owner, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    last_resorts.install()
    yield
    gc.collect()


def fail(*_: object) -> NoReturn:
    raise ValueError(SECRET)


def only(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    """Return Python's only record, whose message tells no secret, but whose exception would."""
    (record,) = (record for record in caplog.records if record.name == last_resorts.LOG.name)
    assert SECRET not in record.getMessage()
    assert record.exc_info
    assert record.exc_info[1] is not None
    assert "in fail" in outline(record.exc_info[1])
    return record


def test_one_of_a_thread(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    thread = threading.Thread(target=fail, args=(SECRET,), name="reader")
    thread.start()
    thread.join()
    assert only(caplog).getMessage() == "a thread was ended by an error: reader"
    assert capfd.readouterr().err == ""


def test_a_thread_may_end_itself(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    thread = threading.Thread(target=sys.exit, args=(SECRET,))
    thread.start()
    thread.join()
    assert (caplog.messages, capfd.readouterr().err) == ([], "")


def test_one_that_can_not_be_raised(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    class Thing:
        def __repr__(self) -> str:
            return SECRET

        def __del__(self) -> None:
            fail()

    Thing()
    assert only(caplog).getMessage() == "an error can't be raised, in a function"
    assert capfd.readouterr().err == ""


def test_one_without_a_value(caplog: pytest.LogCaptureFixture) -> None:
    class Args:
        exc_type, exc_value, exc_traceback = MemoryError, None, None
        err_msg, object = SECRET, SECRET

    sys.unraisablehook(Args())  # type: ignore[arg-type]
    assert caplog.messages == ["an error can't be raised, in a str: MemoryError"]
    threading.excepthook(threading.ExceptHookArgs((MemoryError, None, None, None)))
    assert len(caplog.messages) == 1


def test_one_that_nobody_handles(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        fail()
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    assert only(caplog).getMessage() == "an error was handled by nobody"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("ending", "code"), [("KeyboardInterrupt", -2), ("SystemExit(3)", 3)])
def test_an_interrupt_and_an_exit_go_on_as_ever(ending: str, code: int) -> None:
    script = f"from inference import last_resorts; last_resorts.install(); raise {ending}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert ("KeyboardInterrupt" in done.stderr) is (code == -2)


class Noting(CarefulHandler):
    """Notes what it handles, and fails as it is told to."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always = always
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record, as handlers do."""
        try:
            if self.always or not isinstance(record, Untold):
                fail()
            self.records.append(record)
        except Exception:
            self.handleError(record)


def test_a_record_that_can_not_be_logged_is_told_by_its_place(capfd: pytest.CaptureFixture[str]) -> None:
    handler = Noting(always=False)
    record = logging.LogRecord("parley.x", 20, "x.py", 7, f"%d {SECRET}", (SECRET,), None)
    handler.handle(record)
    (told,) = handler.records
    assert told.getMessage() == "a record of parley.x can't be logged, from x.py:7"
    assert told.exc_info
    assert told.exc_info[0] is ValueError
    assert capfd.readouterr().err == ""


def test_a_handler_that_always_fails_does_so_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    handler = Noting(always=True)
    handler.handle(logging.LogRecord("parley.x", 20, "x.py", 7, SECRET, (), None))
    assert handler.records == []
    assert capfd.readouterr().err == ""
