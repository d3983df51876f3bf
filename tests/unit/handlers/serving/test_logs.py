"""Logs: one line a record, plain or JSON, at the levels asked for."""

import contextvars
import fcntl
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from handlers.account import Account, open_account
from handlers.serving import logs
from handlers.serving.logs import configure, directives, levels, tell_dropped
from inference.fakes.core import fake_client
from tests.support import live_server, logging_kept, make_service


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Give logging back as it was."""
    with logging_kept():
        yield


def test_plain_lines_carry_time_level_logger_message_and_fields() -> None:
    stream = io.StringIO()
    configure("info", stream=stream)
    logging.getLogger("parley.access").info("Success", extra={"status": 200, "path": "/a b"})
    time, rest = stream.getvalue().split(" ", 1)
    assert ' INFO parley.access: Success status=200 path="/a b"\n' == rest
    assert time.endswith("Z")
    assert 27 == len(time)


def test_json_lines_have_the_members_of_tgis_router() -> None:
    stream = io.StringIO()
    configure("info", json_output=True, stream=stream)
    logging.getLogger("parley").warning("über %s", "alles", extra={"status": 200, "level": "x"})
    line = json.loads(stream.getvalue())
    assert ["timestamp", "level", "message", "status", "target"] == list(line)
    assert ("WARN", "über alles", 200, "parley") == tuple(list(line.values())[1:])


# everything that ends a line for some reader, or moves a terminal's cursor
BREAKS = "\n\r\x0b\x0c\x1b\x1c\x1d\x1e\x7f\x85\x9b\u2028\u2029"


@pytest.mark.parametrize("json_output", [False, True])
@pytest.mark.parametrize("character", BREAKS)
def test_a_message_with_line_breaks_stays_one_line(json_output: bool, character: str) -> None:
    stream = io.StringIO()
    configure("info", json_output=json_output, stream=stream)
    forged = f"GET /{character}2026 INFO forged"
    logging.getLogger("parley").info(forged, extra={"path": forged})
    assert 1 == len(stream.getvalue().splitlines())
    assert character not in stream.getvalue().removesuffix("\n")
    if json_output:
        assert forged == json.loads(stream.getvalue())["path"]


@pytest.mark.parametrize("value", ["\ud800", 2**70, {1, 2}, {"a": object()}, float("nan"), b"bytes"])
def test_whatever_is_logged_makes_a_line(value: object) -> None:
    stream = io.StringIO()
    for json_output in (False, True):
        configure("info", json_output=json_output, stream=stream)
        logging.getLogger("parley").info("odd", extra={"value": value})
    plain, as_json = stream.getvalue().splitlines()
    assert "odd value=" in plain
    assert "value" in json.loads(as_json)


def test_what_has_no_bytes_is_written_escaped() -> None:
    written = io.BytesIO()
    configure("info", stream=io.TextIOWrapper(written, encoding="ascii", write_through=True))
    logging.getLogger("parley").info("odd \ud800 ü")
    assert b"odd \\ud800 \\xfc" in written.getvalue()


def test_what_an_exception_quotes_begins_no_line() -> None:
    stream = io.StringIO()
    configure("info", prompts=True, stream=stream)
    try:
        raise ValueError("broken\n2026-01-01T00:00:00Z  INFO parley: forged\r\x1b[2Jagain")
    except ValueError:
        logging.getLogger("parley").exception("failed")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in trace)
    assert "forged\\r\\x1b[2Jagain" in trace[-1]


@pytest.mark.parametrize("json_output", [False, True])
def test_what_is_logged_while_a_request_is_answered_has_its_id(json_output: bool) -> None:
    def answer() -> None:
        open_account(Account("id-7", 0.0, operation="generate", trace_id="ab" * 16))
        logging.getLogger("inference").warning("late")
        logging.getLogger("parley").info("again", extra={"request_id": "id-7"})

    stream = io.StringIO()
    configure("info", json_output=json_output, stream=stream)
    contextvars.copy_context().run(answer)
    logging.getLogger("parley").info("outside")
    *inside, outside = stream.getvalue().splitlines()
    assert "id-7" not in outside
    if json_output:
        span = {"name": "generate", "request_id": "id-7", "trace_id": "ab" * 16}
        assert [span, span] == [json.loads(line)["span"] for line in inside]
        assert "span" not in json.loads(outside)
    else:
        assert [1, 1] == [line.count("request_id=id-7") for line in inside]


@pytest.mark.parametrize("spoilt", [False, True])
def test_the_failure_of_a_generation_has_the_id_that_its_client_was_told(
    spoilt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(*_: object) -> NoReturn:
        raise UnicodeError

    stream = io.StringIO()
    configure("error", stream=stream)
    service = make_service(hostname="127.0.0.1", engine=fake_client(fail_prompts=[] if spoilt else ["Hi"]))
    if spoilt:
        monkeypatch.setattr("inference.frontend.client.EventAssembler.event", spoil)
    with live_server(service) as live:
        answer = live.post("/generate", {"inputs": "Hi"}, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (424, "mine")
    told = r": the text of token \d+ failed" if spoilt else " failed"
    assert re.search(rf": request \w{{24}}{told} request_id=mine\n", stream.getvalue())


def test_an_exception_is_logged_with_its_traceback() -> None:
    plain, as_json = io.StringIO(), io.StringIO()
    for stream in (plain, as_json):
        configure("info", json_output=stream is as_json, prompts=True, stream=stream)
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("handlers.x").exception("failed")
    assert plain.getvalue().endswith("ValueError: broken\n")
    assert json.loads(as_json.getvalue())["exception"].endswith("ValueError: broken")


@pytest.mark.parametrize(
    ("value", "logger", "expected"),
    [
        ("info", "parley", logging.INFO),
        ("warn", "inference", logging.WARNING),
        ("DEBUG", "handlers", logging.DEBUG),
        ("info,text_generation_router=debug", "parley", logging.DEBUG),
        ("text_generation_router=debug,info", "parley", logging.DEBUG),
        ("parley=debug, warn", "parley", logging.DEBUG),
        ("parley=debug, warn", "handlers", logging.WARNING),
        ("warn,text_generation_launcher::shards=trace", "handlers", logging.DEBUG),
        ("error,httpx=info", "parley", logging.ERROR),
        ("error,httpx=info", "httpx", logging.INFO),
        ("info, uvicorn.error = off", "uvicorn.error", logging.CRITICAL + 10),
    ],
)
def test_levels_of_a_list_of_targets(value: str, logger: str, expected: int) -> None:
    assert expected == levels(value)[logger]


@pytest.mark.parametrize("value", ["loud", "", "info,", "parley=", "=loud"])
def test_an_unknown_level_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be trace, debug"):
        directives(value)


def test_a_log_that_is_not_read_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING_BYTES", 10_000)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"{}\n".rjust(4096))  # as much as it holds
    dropped: list[int] = []
    with os.fdopen(writing, "w") as stream:
        configure("info", json_output=True, stream=stream)
        tell_dropped(dropped.append)
        for at in range(200):
            logging.getLogger("parley").info("%0200d", at)
        lines: list[str] = []
        with os.fdopen(reading) as lines_read:
            assert json.loads(lines_read.readline()) == {}
            while not lines or "dropped" not in lines[-1]:
                lines.append(json.loads(lines_read.readline())["message"])
            logging.getLogger("parley").info("on")
            assert json.loads(lines_read.readline())["message"] == "on"
            logging.root.handlers[0].flush()
    *kept, announcement = lines
    assert [int(message) for message in kept] == list(range(len(kept)))
    assert sum(dropped) == 200 - len(kept) > 0
    assert announcement.startswith(f"{sum(dropped)} lines of this log were dropped")


def test_another_configuration_ends_the_first_one(tmp_path: Path) -> None:
    with (tmp_path / "first").open("w") as first, (tmp_path / "second").open("w") as second:
        for stream in (first, second):
            configure("info", stream=stream)
            logging.getLogger("parley").info("said")
        (handler,) = logging.root.handlers
        handler.flush()
        handler.close()
    assert [(tmp_path / name).read_text().count("said") for name in ("first", "second")] == [1, 1]


def test_libraries_are_silent_below_warnings_unless_named() -> None:
    stream = io.StringIO()
    configure("debug", stream=stream)
    logging.getLogger("httpx").info("HTTP Request: GET")
    logging.getLogger("uvicorn.access").info("GET /")
    assert "" == stream.getvalue()
    configure("info,httpx=info", stream=stream)
    logging.getLogger("httpx").info("HTTP Request: GET")
    assert 1 == stream.getvalue().count("HTTP Request")


@pytest.mark.parametrize(("colorize", "coloured"), [(None, False), (False, False), (True, True)])
def test_colour_on_a_terminal_or_when_asked_for(colorize: bool | None, coloured: bool) -> None:
    stream = io.StringIO()
    configure("info", colorize=colorize, stream=stream)
    logging.getLogger("parley").info("x")
    assert coloured is ("\x1b[32m INFO\x1b[0m" in stream.getvalue())


@pytest.mark.parametrize("json_output", [False, True])
@pytest.mark.parametrize("prompts", [False, True])
def test_of_what_may_quote_a_prompt_the_outline_is_told(json_output: bool, prompts: bool) -> None:
    stream = io.StringIO()
    configure("info", json_output=json_output, prompts=prompts, stream=stream)
    for outline in ("a panic at x.rs:1:1", ""):
        logging.getLogger("parley").warning("%s", "a secret", extra={"outline": outline})
    told = stream.getvalue()
    assert ("a secret" in told) is prompts
    assert told.count("\n") == 1 + prompts
    assert ("a panic at x.rs:1:1 (what it says is withheld, as it may quote" in told) is not prompts


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("json_output", [False, True])
def test_a_record_that_can_not_be_told_is_told_by_its_place(
    in_memory: bool, json_output: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with io.StringIO() if in_memory else (tmp_path / "log").open("w+") as stream:
        configure("info", json_output=json_output, stream=stream)
        logging.getLogger("parley").info("%d a secret", "another secret")
        logging.getLogger("parley").info("on")
        (handler,) = logging.root.handlers
        handler.flush()
        stream.seek(0)
        told = stream.read()
        handler.close()
    assert "a record of parley can't be logged, from " in told
    assert "TypeError" in told
    assert "on" in told.splitlines()[-1]
    assert "secret" not in told
    assert capfd.readouterr().err == ""
