"""The replicas' log in this process' own: Ray prints it here, and from there it goes on as records.

Replicas write JSON lines, whatever is wanted of the log, so that nothing of a record is lost on the way.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from typing import Any

import orjson

from handlers.serving import logs
from handlers.settings.table import Settings

# `(ServeReplica:parley:Replica pid=7, ip=10.0.0.2) ` before a line, as ray._private.worker prints it
PREFIX = re.compile(r"\((?:(?P<name>[^()]*) )?(?P<process>pid=\d+(?:, ip=[^()]+)?)\) (?P<line>.*)", re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
OF_RAY = re.compile(r"(INFO|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\d ")  # how a line of Ray Serve's own begins
RAY = "parley.ray"  # the logger of what Ray says of itself: its level is Parley's
REPLICA = "ServeReplica:"
LONGEST = 1_048_576  # characters of a line
# words by which Ray would hide a line, or what comes before them in it
MAGIC = {
    ":info_message:": "\\u003ainfo_message:",
    "__ray_tqdm_magic_token__": "\\u005f_ray_tqdm_magic_token__",
}
LEVELS = {"TRACE": logging.DEBUG, "WARN": logging.WARNING}


class ReplicaLines(logs.JsonLines):
    """JSON lines in which nobody's words mean something to Ray, which prints them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = super().format(record)
        for word, harmless in MAGIC.items():
            line = line.replace(word, harmless)
        return line


def configure(settings: Settings) -> None:
    """Send a replica's log to Ray, by its settings."""
    logs.follow(settings)
    if settings.json_output:
        for handler in logging.root.handlers:
            handler.setFormatter(ReplicaLines(settings.log_prompts))


@contextmanager
def in_the_log(application: str) -> Iterator[None]:
    """Have the log tell what is printed in this process, by Ray for its processes, until the block ends.

    Of replicas it tells those of this application: a cluster may have others, and Ray prints all of them.
    """
    with ExitStack() as held:
        held.enter_context(redirect_stdout(Lines("parley.stdout", logging.INFO, application)))
        held.enter_context(redirect_stderr(Lines("stderr", logging.WARNING, application)))
        yield


class Lines(io.TextIOBase):
    """A stream whose lines become records of the log; any thread may write."""

    def __init__(self, name: str, level: int, application: str) -> None:
        """`name` and `level` are for lines that aren't a record already."""
        self._name = name
        self._level = level
        self._application = application
        self._writing = threading.Lock()
        self._rest = ""

    def writable(self) -> bool:
        """Return that it takes text."""
        return True

    def write(self, text: str) -> int:
        """Tell the lines that are whole by now, or longer than a line may be."""
        with self._writing:
            *whole, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > LONGEST:
                whole, self._rest = [*whole, self._rest], ""
        for line in whole:
            record = record_of(line, self._name, self._level, self._application) if line.strip() else None
            if record is not None and logging.getLogger(record.name).isEnabledFor(record.levelno):
                logging.getLogger(record.name).handle(record)
        return len(text)


def record_of(line: str, name: str, level: int, application: str) -> logging.LogRecord | None:
    """Return the record that a line tells: the replica's own, or one of this logger and level.

    What Ray's and others' processes say below a warning, and tracebacks after it, is for who asks for DEBUG:
    they are in Ray's files as well. None if another application's replica says it.
    """
    found = PREFIX.fullmatch(ANSI.sub("", line).rstrip("\r"))
    text = line if found is None else found["line"]
    who = "" if found is None else found["name"] or ""
    ours = who.startswith(f"{REPLICA}{application}:")
    if who.startswith(REPLICA) and not ours:
        return None
    own = OF_RAY.match(text)
    if own is not None:
        name, level = RAY, logging.DEBUG if own[1] == "INFO" else logging.getLevelNamesMapping()[own[1]]
    elif found is not None and not ours:
        name, level = RAY, logging.DEBUG
    told = {"name": name, "msg": text, **_named(level)}
    if ours:
        told = _told(text) or told
    if found is not None:
        told["replica"] = found["process"].replace(", ", " ")
    return logging.makeLogRecord(told)


def _told(line: str) -> dict[str, Any] | None:
    """Return the members of the record that a JSON line was made of, None for other lines."""
    try:
        fields = dict(orjson.loads(line))
        level, name, message = fields.pop("level"), fields.pop("target"), fields.pop("message")
        number = LEVELS.get(level) or logging.getLevelNamesMapping()[level]
        created = datetime.fromisoformat(fields.pop("timestamp")).timestamp()
    except (ValueError, KeyError, TypeError):
        return None
    # Others than a replica's log may print JSON: what a record has itself is none of their fields
    kept = {key: value for key, value in fields.items() if key and key not in logs.STANDARD}
    span = {"span": fields["span"]} if isinstance(fields.get("span"), dict) else {}
    return {**kept, **span, "name": name, "msg": message, **_named(number), "created": created}


def _named(level: int) -> dict[str, Any]:
    return {"levelno": level, "levelname": logging.getLevelName(level), "args": ()}
