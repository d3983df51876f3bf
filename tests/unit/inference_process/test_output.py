"""What a process writes, line by line; what may quote a prompt is marked, however it comes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.ipc.output import LINE_BYTES, LineReader
from inference.ipc.panics import LOOK_SECONDS, SILENCE_SECONDS

SECRET = "lighthouse"
HEADS = (
    "thread '<unnamed>' panicked at src/lib.rs:10:5:\n",
    "\nthread '<unnamed>' (12) panicked at src/lib.rs:10:5:\n",
    f"thread 'x' panicked at '{SECRET}\n",
    f"thread 'x' panicked at 'thread 'y' panicked at {SECRET}.rs:1:1:\n",
)
MESSAGES = (
    f"{SECRET}\n",
    f"byte index 1 of `{SECRET}é`\n\n\n",
    f"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n{SECRET}\n",
    f"thread '{SECRET}' panicked at {SECRET}.rs:1:1:\n{SECRET}\n",
    f"stack backtrace:\n   0: {SECRET}\n",
    f"{'x' * LINE_BYTES}{SECRET}\n",
)
ORDINARY = ("a warning\n", "CUDA error: out of memory\n", "Fatal Python error: Aborted\n", "\n")


class Told(logging.Handler):
    """What was told: all of it, and what may be told to everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []
        self.everybody: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        self.all.append(record.getMessage())
        self.everybody += filter(None, [getattr(record, "outline", record.getMessage())])


class Pipe:
    """A pipe that is read as its writer writes, by a clock of its own."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.told = Told()
        log = logging.Logger("tests.output", logging.DEBUG)
        log.addHandler(self.told)
        self.reader = LineReader(self.reading, log)
        self.now = 1000.0

    def write(self, text: str, pieces: int) -> None:
        """Write a text in pieces, with a moment after each."""
        data = text.encode()
        for at in range(0, len(data), pieces):
            os.write(self.writing, data[at : at + pieces])
            self.relay(LOOK_SECONDS / 2)

    def relay(self, seconds: float) -> bool:
        """Let so much time pass, and have read what came."""
        self.now += seconds
        with patch("inference.ipc.output.time.monotonic", lambda: self.now):
            return self.reader.relay()

    def wait(self) -> None:
        """Be silent for long enough."""
        for _ in range(round(SILENCE_SECONDS / LOOK_SECONDS) + 1):
            assert self.reader.look_seconds in (None, LOOK_SECONDS)
            self.relay(LOOK_SECONDS)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with opened() as each:
        yield each


@contextmanager
def opened() -> Iterator[Pipe]:
    each = Pipe()
    try:
        yield each
    finally:
        os.close(each.writing)
        os.close(each.reading)


def test_output_is_logged_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    reader = LineReader(reading)
    assert reader.relay()
    os.write(writing, b"first\n\nsec")
    assert reader.relay()
    assert caplog.messages == ["first"]
    os.write(writing, b"ond\xff\r\n" + b"x" * 1000)
    assert reader.relay()
    assert caplog.messages[1:] == ["second\ufffd"]
    os.write(writing, b"x" * (LINE_BYTES - 999))  # as much as a pipe takes
    assert reader.relay()
    os.write(writing, b"the last words")
    os.close(writing)
    assert not reader.relay()
    os.close(reading)
    assert "".join(caplog.messages[2:]) == "x" * (LINE_BYTES + 1) + "the last words"


@given(
    before=st.lists(st.sampled_from(ORDINARY), max_size=3),
    head=st.sampled_from(HEADS),
    messages=st.lists(st.sampled_from((*MESSAGES, *HEADS, *ORDINARY)), max_size=4),
    after=st.lists(st.sampled_from(ORDINARY), max_size=3),
    pieces=st.sampled_from((1, 2, 3, 7, 50, 60_000)),
)
def test_no_secret_is_told_however_it_comes(
    before: list[str], head: str, messages: list[str], after: list[str], pieces: int
) -> None:
    message = "".join(messages)
    pieces = pieces if len(message) < 1000 else 60_000
    with opened() as pipe:
        pipe.write("".join(before), pieces)
        pipe.write(head, pieces)
        pipe.write(message, pieces)
        pipe.wait()
        pipe.write("".join(after), pieces)
    place = " at src/lib.rs:10:5" if "src/lib.rs:10:5" in head else ""
    told = [*lines(before), f"native code panicked{place}", *lines(after)]
    assert pipe.told.everybody == told
    written = "".join([*before, head, message, *after])
    assert "".join("".join(pipe.told.all).split()) == "".join(written.split())


def lines(texts: list[str]) -> list[str]:
    return [text.strip() for text in texts if text.strip()]


def test_whoever_is_late_takes_old_bytes_for_no_new_ones(pipe: Pipe) -> None:
    pipe.write(HEADS[0], 1000)
    os.write(pipe.writing, f"{SECRET}\n".encode())  # at once, but nobody looks
    pipe.relay(3600.0)
    pipe.relay(LOOK_SECONDS)
    os.write(pipe.writing, f"{SECRET}\n".encode())
    pipe.relay(LOOK_SECONDS)
    assert pipe.told.everybody == ["native code panicked at src/lib.rs:10:5"]


def test_the_rest_of_a_line_is_withheld_however_late_it_comes(pipe: Pipe) -> None:
    pipe.write(f"{HEADS[0]}the {SECRET[:5]}", 1000)
    pipe.wait()
    pipe.write(f"{SECRET[5:]}\n", 1000)
    pipe.write(f"{'x' * (LINE_BYTES - 10)}", 60_000)
    pipe.write(f"{SECRET * 5}", 60_000)
    pipe.wait()
    pipe.write(f"{SECRET}\n", 60_000)
    assert pipe.told.everybody == ["native code panicked at src/lib.rs:10:5"]
    pipe.wait()
    pipe.write(ORDINARY[0], 1000)
    assert pipe.told.everybody[1:] == ["a warning"]


@pytest.mark.parametrize("at", range(12))
def test_a_panic_is_found_in_a_line_that_is_cut(pipe: Pipe, at: int) -> None:
    head = "thread 'x' panicked at 'it\n"
    begun = "x" * (LINE_BYTES + 1 - head.index("panicked") - at) + head[: head.index("panicked") + at]
    pipe.write(begun[:60_000], 60_000)
    pipe.write(begun[60_000:], 60_000)
    pipe.write(f"{head[head.index('panicked') + at :]}{SECRET}\n", 60_000)
    assert SECRET not in "".join(pipe.told.everybody)
    assert "native code panicked" in pipe.told.everybody


def test_the_end_of_a_process_in_a_panic_tells_no_more(pipe: Pipe) -> None:
    pipe.write(f"{HEADS[0]}{SECRET}", 1000)
    os.close(pipe.writing)
    assert not pipe.relay(1.0)
    assert not pipe.relay(1.0)
    assert not pipe.reader.open
    assert pipe.told.all[-1] == SECRET
    assert pipe.told.everybody == ["native code panicked at src/lib.rs:10:5"]
    pipe.writing = os.open(os.devnull, os.O_WRONLY)
