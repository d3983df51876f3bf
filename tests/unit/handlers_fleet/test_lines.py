from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from handlers.fleet.lines import MAGIC, Lines, ReplicaLines, in_the_log, record_of
from handlers.serving import logs
from tests.support import logging_kept

APPLICATION = "parley-here-3000"
PREFIX = f"(ServeReplica:{APPLICATION}:Replica pid=7, ip=10.0.0.2) "


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


def the_record(line: str, name: str, level: int) -> logging.LogRecord:
    record = record_of(line, name, level, APPLICATION)
    assert record is not None
    return record


def told(line: str, *, json_output: bool = False) -> str:
    stream = io.StringIO()
    logs.configure("info", json_output=json_output, stream=stream)
    lines = Lines("stdout", logging.INFO, APPLICATION)
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
    assert the_record(PREFIX + written, "stdout", logging.INFO).created == pytest.approx(
        logging.makeLogRecord({}).created, abs=60
    )


def test_colours_of_the_prefix_are_left_out() -> None:
    record = the_record(f"\x1b[36m{PREFIX.rstrip()}\x1b[0m {line_of(True)}", "stdout", logging.INFO)
    assert (record.name, record.getMessage()) == ("parley.access", "POST /generate")
    assert record.levelno == logging.WARNING


def test_what_a_replica_writes_beside_its_log_is_told_by_the_streams_level() -> None:
    record = the_record(f"{PREFIX}Fatal Python error", "stderr", logging.WARNING)
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
    record = the_record(line, "stderr", logging.WARNING)
    assert (record.name, record.levelno) == ("parley.ray", level)


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"message": 1}', '{"message": "", "target": "", "level": "NO"}']
)
def test_json_that_is_no_record_is_a_line_like_others(line: str) -> None:
    assert the_record(PREFIX + line, "stdout", logging.INFO).getMessage() == line


@pytest.mark.parametrize("odd", [{"span": 5}, {"exc_info": True}, {"args": [1]}, {"msg": "x"}, {"": 1}])
@pytest.mark.parametrize("json_output", [False, True])
def test_what_a_record_has_itself_is_no_field_of_a_line(odd: dict[str, object], json_output: bool) -> None:
    stream = io.StringIO()
    logs.configure("info", json_output=json_output, stream=stream)
    told = {"timestamp": "2026-01-01T12:00:00.000000Z", "level": "INFO", "target": "parley"}
    line = json.dumps({**told, "message": "hello", **odd})
    Lines("parley", logging.INFO, APPLICATION).write(f"{PREFIX}{line}\n")
    assert "hello" in stream.getvalue()
    assert "exc_info" not in stream.getvalue()


def test_lines_may_come_in_parts_and_several_at_once() -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    lines = Lines("parley", logging.INFO, APPLICATION)
    for part in ("on", "e\ntwo\n\nth", "ree\n", "rest"):
        lines.write(part)
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["one", "two", "three"]


def test_prints_go_into_the_log_while_the_block_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    with in_the_log(APPLICATION):
        print("hello")
        print("oh", file=sys.stderr)
    print("after")
    lines = [line[28:] for line in stream.getvalue().splitlines()]
    assert lines == [" INFO parley.stdout: hello", " WARN stderr: oh"]
    assert capsys.readouterr().out == "after\n"


def test_what_others_replicas_say_is_not_told() -> None:
    written = line_of(True)
    for name in ("ServeReplica:parley-here-30001:Replica", "ServeReplica:other:Replica"):
        assert told(f"({name} pid=7) {written}") == ""
        assert told(f"({name} pid=7) print") == ""


def test_what_looks_like_a_record_is_none_unless_a_replica_of_ours_says_it() -> None:
    written = line_of(True)
    for who in ("other_task pid=7", "pid=7"):
        record = the_record(f"({who}) {written}", "stdout", logging.INFO)
        assert (record.name, record.levelno, record.getMessage()) == ("parley.ray", logging.DEBUG, written)


def test_what_the_machine_says_of_a_process_that_it_ended_is_told() -> None:
    line = "(raylet) 1 worker was killed as the node was low on memory"
    record = the_record(line, "stderr", logging.WARNING)
    assert (record.name, record.levelno, record.getMessage()) == ("stderr", logging.WARNING, line)


def test_warnings_of_ray_are_told_by_a_log_at_its_usual_level() -> None:
    line = "(ServeController pid=7) WARNING 2026-11-23 23:23:27,066 controller 7 -- 1 replica waits"
    assert told(line)[28:] == f" WARN parley.ray: {line[24:]} replica=pid=7"


@pytest.mark.parametrize("word", MAGIC)
def test_no_word_of_a_client_hides_a_line_from_who_reads_it(word: str) -> None:
    stream = io.StringIO()
    logs.configure("info", json_output=True, stream=stream)
    for handler in logging.root.handlers:
        handler.setFormatter(ReplicaLines())
    logging.getLogger("parley.access").info("GET /%s", word, extra={"status": 200})
    assert word not in stream.getvalue()
    record = the_record(PREFIX + stream.getvalue().rstrip(), "stdout", logging.INFO)
    assert record.getMessage() == f"GET /{word}"


def test_a_line_without_end_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handlers.fleet.lines.LONGEST", 10)
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    lines = Lines("parley", logging.INFO, APPLICATION)
    for _ in range(3):
        lines.write("x" * 8)
    assert "x" * 16 in stream.getvalue()
