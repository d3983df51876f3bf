"""The replicas' log in this process' own: Ray prints it here, and from there it goes on as records.

Replicas write JSON lines, whatever is wanted of the log, so that nothing of a record is lost on the way.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from typing import Any

import orjson

# `(ServeReplica:parley:Replica pid=7, ip=10.0.0.2) ` before a line, as ray._private.worker prints it
PREFIX = re.compile(r"\((?P<name>[^)]*?) (?P<process>pid=\d+(?:, ip=[^)]+)?)\) (?P<line>.*)", re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
OF_RAY = re.compile(r"(INFO|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\d ")  # how a line of Ray Serve's own begins
LEVELS = {"TRACE": logging.DEBUG, "WARN": logging.WARNING}


@contextmanager
def in_the_log() -> Iterator[None]:
    """Have the log tell what is printed in this process, by Ray for its processes, until the block ends."""
    with ExitStack() as held:
        held.enter_context(redirect_stdout(Lines("parley.stdout", logging.INFO)))
        held.enter_context(redirect_stderr(Lines("stderr", logging.WARNING)))
        yield


class Lines(io.TextIOBase):
    """A stream whose lines become records of the log."""

    def __init__(self, name: str, level: int) -> None:
        """`name` and `level` are for lines that aren't a record already."""
        self._name = name
        self._level = level
        self._rest = ""

    def writable(self) -> bool:
        """Return that it takes text."""
        return True

    def write(self, text: str) -> int:
        """Tell the lines that are whole by now."""
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            if line.strip():
                record = record_of(line, self._name, self._level)
                logger = logging.getLogger(record.name)
                if logger.isEnabledFor(record.levelno):
                    logger.handle(record)
        return len(text)


def record_of(line: str, name: str, level: int) -> logging.LogRecord:
    """Return the record that a line tells: the replica's own, or one of this logger and level.

    What Ray's own processes say below a warning, and tracebacks after it, is for who asks for DEBUG: they are
    in Ray's files as well.
    """
    found = PREFIX.fullmatch(ANSI.sub("", line).rstrip("\r"))
    text = line if found is None else found["line"]
    own = OF_RAY.match(text)
    if own is not None:
        name, level = "ray", logging.DEBUG if own[1] == "INFO" else logging.getLevelNamesMapping()[own[1]]
    elif found is not None and not found["name"].startswith("ServeReplica"):
        name, level = "ray", logging.DEBUG
    if found is None:
        return logging.makeLogRecord({"name": name, "msg": text, **_named(level)})
    replica = {"replica": found["process"].replace(", ", " ")}
    told = _told(text) or {"name": name, "msg": text, **_named(level)}
    return logging.makeLogRecord({**told, **replica})


def _told(line: str) -> dict[str, Any] | None:
    """Return the members of the record that a JSON line was made of, None for other lines."""
    try:
        told = orjson.loads(line)
        fields = dict(told["fields"])
        message, level = fields.pop("message"), told["level"]
        number = LEVELS.get(level) or logging.getLevelNamesMapping()[level]
        members = {"name": told["target"], "msg": message, **fields, **_named(number)}
        created = datetime.fromisoformat(told["timestamp"]).timestamp()
    except (ValueError, KeyError, TypeError):
        return None
    span = {"span": told["span"]} if "span" in told else {}
    return {**members, **span, "created": created}


def _named(level: int) -> dict[str, Any]:
    return {"levelno": level, "levelname": logging.getLevelName(level), "args": ()}
