from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from handlers import logs
from handlers.fleet.lines import Lines, in_the_log, record_of
from tests.support import logging_kept

PREFIX = "(ServeReplica:parley:Replica pid=7, ip=10.0.0.2) "


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    with logging_kept():
        yield


def line_of(json_output: bool, **fields: object) -> str:
    """Return what a process writes of a record, in the form that replicas use, or another."""
    stream = io.StringIO()
    logs.configure("info", json_output=json_output, stream=stream)
    logging.getLogger("parley.access").warning("POST /generate", extra=fields)
    return stream.getvalue().rstrip("\n")


def told(line: str, *, json_output: bool = False) -> str:
    stream = io.StringIO()
    logs.configure("info", json_output=json_output, stream=stream)
    lines = Lines("stdout", logging.INFO)
    lines.write(line + "\n")
    return stream.getvalue().rstrip("\n")


@pytest.mark.parametrize("json_output", [False, True])
def test_a_replicas_line_is_as_if_it_had_been_logged_here(json_output: bool) -> None:
    written = line_of(True, status=200, seconds=0.25)
    own = line_of(json_output, status=200, seconds=0.25, replica="pid=7 ip=10.0.0.2")
    seen = told(PREFIX + written, json_output=json_output)
    # but for the time: that of the replica's
    at = 27 if not json_output else 42
    assert seen[at:] == own[at:]
    assert record_of(PREFIX + written, "stdout", logging.INFO).created == pytest.approx(
        logging.makeLogRecord({}).created, abs=60
    )


def test_colours_of_the_prefix_are_left_out() -> None:
    record = record_of(f"\x1b[36m{PREFIX.rstrip()}\x1b[0m {line_of(True)}", "stdout", logging.INFO)
    assert (record.name, record.getMessage()) == ("parley.access", "POST /generate")
    assert record.levelno == logging.WARNING


def test_what_a_replica_writes_beside_its_log_is_told_by_the_streams_level() -> None:
    record = record_of(f"{PREFIX}Fatal Python error", "stderr", logging.WARNING)
    assert (record.name, record.levelno) == ("stderr", logging.WARNING)
    assert record.getMessage() == "Fatal Python error"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("INFO 2026-11-23 23:23:27,066 serve 7 -- Started Serve", logging.DEBUG),
        ("WARNING 2026-11-23 23:23:27,066 serve 7 -- is unavailable", logging.WARNING),
        ("(ServeController pid=7) ERROR 2026-11-23 23:23:27,066 controller 7 -- failed", logging.ERROR),
        ("(ServeController pid=7)   File 'x.py', line 1", logging.DEBUG),
    ],
)
def test_of_ray_what_is_less_than_a_warning_is_for_debugging(line: str, level: int) -> None:
    record = record_of(line, "stderr", logging.WARNING)
    assert (record.name, record.levelno) == ("ray", level)


@pytest.mark.parametrize("line", ["{", "[]", '{"fields": 1}', '{"fields": {"message": "x"}, "level": "NO"}'])
def test_json_that_is_no_record_is_a_line_like_others(line: str) -> None:
    assert record_of(PREFIX + line, "stdout", logging.INFO).getMessage() == line


def test_lines_may_come_in_parts_and_several_at_once() -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    lines = Lines("parley", logging.INFO)
    for part in ("on", "e\ntwo\n\nth", "ree\n", "rest"):
        lines.write(part)
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["one", "two", "three"]


def test_prints_go_into_the_log_while_the_block_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    with in_the_log():
        print("hello")
        print("oh", file=sys.stderr)
    print("after")
    lines = [line[28:] for line in stream.getvalue().splitlines()]
    assert lines == [" INFO parley.stdout: hello", " WARN stderr: oh"]
    assert capsys.readouterr().out == "after\n"
