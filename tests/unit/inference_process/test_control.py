from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from inference.ipc.control import (
    Control,
    ControlHandler,
    log_levels,
    relay,
    send_logs,
    socket_pair,
    to_logged,
)
from inference.ipc.messages import CONTROL_LIMIT, FROM_CHILD, FROM_PARENT, Logged, Progress, Stop


@pytest.fixture
def line() -> Iterator[tuple[Control, Control]]:
    ours, theirs = socket_pair()
    child = Control(theirs)
    yield ours, child
    ours.close()
    child.close()


@pytest.fixture
def logger(line: tuple[Control, Control]) -> logging.Logger:
    """Return the child's logger, whose records cross and go nowhere else."""
    logger = logging.Logger("tests.crossing", logging.DEBUG)
    logger.addHandler(ControlHandler(line[1]))
    return logger


def heard(parent: Control) -> list[object]:
    """Return what one read brings."""
    return parent.read(FROM_CHILD) or []


def test_words_go_both_ways_until_an_end_is_closed(line: tuple[Control, Control]) -> None:
    parent, child = line
    child.send(Progress("one"))
    child.send(Progress("two"))
    assert parent.read(FROM_CHILD) == [Progress("one"), Progress("two")]
    parent.send(Stop())
    parent.close()
    assert list(child.receive(FROM_PARENT)) == [Stop()]
    assert not child.send(Progress("nobody hears it"))


def test_records_come_out_of_the_same_logger(
    line: tuple[Control, Control], logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.warning("%d of %s", 3, "them")
    (logged,) = heard(line[0])
    assert isinstance(logged, Logged)
    relay(logged)
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == (
        "tests.crossing",
        logging.WARNING,
        "3 of them",
    )
    assert (record.created, record.funcName) == (
        logged.created,
        "test_records_come_out_of_the_same_logger",
    )
    assert record.processName == "engine"


def test_percent_signs_in_a_message_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    relay(Logged("tests.crossing", logging.ERROR, 1.25, "100%d", None, "x.py", 1, "f", "t"))
    assert caplog.messages == ["100%d"]


def test_tracebacks_are_shown_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        record = logging.LogRecord("tests.crossing", 40, "x.py", 1, "failed", None, None)
        record.exc_info = (KeyError, error, error.__traceback__)
    relay(to_logged(record))
    assert "Traceback (most recent call last)" in caplog.text
    assert "KeyError: 'lost'" in caplog.text


def test_a_record_without_end_is_cut() -> None:
    record = logging.LogRecord("tests", 40, "x.py", 1, "é" * CONTROL_LIMIT, None, None)
    assert len(to_logged(record).text.encode()) < CONTROL_LIMIT


def test_a_record_that_can_not_be_formatted_harms_nobody_and_is_told_by_its_place(
    line: tuple[Control, Control], logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.error("%d", "no number")
    logger.error("the next one")
    first, second = (logged for logged in heard(line[0]) if isinstance(logged, Logged))
    assert first.text.startswith("a record of tests.crossing can't be logged, from /")
    assert "TypeError" in str(first.outline)
    assert second.text == "the next one"
    assert "no number" not in f"{first}{capsys.readouterr()}"


def test_no_record_of_a_burst_is_lost_however_slow_the_parent(
    line: tuple[Control, Control], logger: logging.Logger
) -> None:
    def burst() -> None:
        for at in range(5000):
            logger.info("%d %s", at, "x" * 500)
        line[1].close()

    thread = threading.Thread(target=burst)
    thread.start()
    texts = [logged.text.split()[0] for logged in line[0].receive(FROM_CHILD)]
    thread.join()
    assert texts == [str(at) for at in range(5000)]


def test_a_parent_that_does_not_read_holds_up_nobody_for_long_and_hears_how_much_it_missed(
    line: tuple[Control, Control], logger: logging.Logger
) -> None:
    for at in range(10_000):  # 5 MB, of which the socket takes some: nobody reads
        logger.info("%d %s", at, "x" * 500)
    texts: list[str] = []
    reading = threading.Thread(target=hear, args=(line[0], texts), daemon=True)
    reading.start()
    while "on" not in texts[-1:]:  # there is room again in a moment
        logger.info("on")
        time.sleep(0.01)
    for at in range(5000):  # and from then on nothing is lost
        logger.info("%d %s later", at, "x" * 500)
    line[1].close()
    reading.join()
    later = [int(text.split()[0]) for text in texts if text.endswith("later")]
    assert later == list(range(5000))
    numbers = [int(text.split()[0]) for text in texts if text.endswith("x")]
    assert numbers == list(range(len(numbers)))
    announced = [text for text in texts if "dropped" in text]
    assert 10_000 - len(numbers) <= sum(int(text.split()[0]) for text in announced)
    assert "log records of the engine were dropped: the server's process did not read" in announced[0]


def hear(parent: Control, texts: list[str]) -> None:
    """Note the texts that come."""
    for message in parent.receive(FROM_CHILD):
        assert isinstance(message, Logged)
        texts.append(message.text)


def test_somebody_who_waits_for_room_keeps_no_record_waiting(
    line: tuple[Control, Control], logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line[1], "_patience", 0.01)
    large = Progress("x" * (CONTROL_LIMIT // 2))
    waiting = threading.Thread(target=lambda: [line[1].send(large) for _ in range(8)], daemon=True)
    waiting.start()
    while not line[1]._lock.locked():
        time.sleep(0.001)
    while waiting.is_alive() and line[1].offer(Progress("small")):  # until it stands still
        pass
    assert waiting.is_alive()
    sizes = [len(message.line) for message in read_until(line[0], waiting)]
    assert sizes.count(len(large.line)) == 8


def read_until(parent: Control, writer: threading.Thread) -> Iterator[Progress]:
    found = 0
    for message in parent.receive(FROM_CHILD):
        assert isinstance(message, Progress)
        yield message
        found += len(message.line) > 100
        if found == 8:
            writer.join()
            return


def test_the_child_logs_at_the_levels_of_its_parent(line: tuple[Control, Control]) -> None:
    root, handlers, level = logging.root, logging.root.handlers, logging.root.level
    ours = logging.getLogger("tests.levels")
    ours.setLevel(logging.ERROR)
    levels = log_levels()
    try:
        ours.setLevel(logging.NOTSET)
        root.setLevel(logging.DEBUG)
        send_logs(line[1], levels)
        assert (ours.level, root.level) == (logging.ERROR, level)
        ours.warning("below its level")
        ours.error("said")
        messages = heard(line[0])
        assert [each.text for each in messages if isinstance(each, Logged)] == ["said"]
    finally:
        root.handlers = handlers
        root.setLevel(level)
        ours.setLevel(logging.NOTSET)
        logging.captureWarnings(False)
