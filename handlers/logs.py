"""Logs: one line each, plain or JSON, in the form of TGI's, on standard output.

Fields given with `extra=` follow the message: `logger.info("Success", extra={"total_time": "48ms"})` is
`... INFO parley.access: Success total_time=48ms`, or a member of `fields` in a JSON line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 10,
}
OWN = ("parley", "handlers", "inference")  # the loggers that the level is meant for
OTHERS = logging.WARNING  # libraries say at INFO what concerns nobody: a line for each download request
TGI_TARGETS = ("text_generation_launcher", "text_generation_router", "text_generation_server")
COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31", logging.INFO: "32"}
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def directives(value: str) -> str:
    """Check a LOG_LEVEL; raises ValueError."""
    levels(value)
    return value.strip().lower()


def levels(value: str) -> dict[str, int]:
    """Return the level of each logger that a LOG_LEVEL names, e.g. `info,text_generation_router=debug`.

    A level that stands alone is for Parley's own loggers, and so are TGI's targets.
    """
    found = dict.fromkeys(OWN, logging.INFO)
    for part in value.lower().split(","):
        target, separator, name = part.strip().rpartition("=")
        if name.strip() not in LEVELS:
            raise ValueError(f"must be {', '.join(LEVELS)}, or a list of target=level")
        if not separator or target.strip().startswith(TGI_TARGETS):
            found |= dict.fromkeys(OWN, LEVELS[name.strip()])
        else:
            found[target.strip().replace("::", ".")] = LEVELS[name.strip()]
    return found


def configure(
    log_level: str, *, json_output: bool = False, colorize: bool | None = None, stream: TextIO | None = None
) -> None:
    """Send all logs to `stream` (standard output), in one form; replaces an earlier configuration."""
    target = sys.stdout if stream is None else stream
    colour = target.isatty() if colorize is None else colorize
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonLines() if json_output else PlainLines(colour))
    logging.root.handlers = [handler]
    logging.root.setLevel(OTHERS)
    for name, level in levels(log_level).items():
        logging.getLogger(name).setLevel(level)
    # its line for each request would stand beside parley.access's
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(True)


class PlainLines(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE field=value`."""

    def __init__(self, colorize: bool = False) -> None:
        super().__init__()
        self.colorize = colorize

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback's after it."""
        level = f"{record.levelname:>5}"
        if self.colorize and record.levelno in COLOURS:
            level = f"\x1b[{COLOURS[record.levelno]}m{level}\x1b[0m"
        fields = "".join(f" {key}={_plain(value)}" for key, value in _fields(record).items())
        line = f"{_time(record)} {level} {record.name}: {_one_line(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """An object a line, with TGI's members: timestamp, level, fields (message and more), target."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {"message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        place = {"timestamp": _time(record), "level": record.levelname}
        return json.dumps({**place, "fields": fields, "target": record.name}, default=str, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _one_line(message: str) -> str:
    """Keep what a client sent from forging a line of its own."""
    return message.replace("\r", "\\r").replace("\n", "\\n")


def _plain(value: object) -> str:
    shown = _one_line(str(value))
    return json.dumps(shown, ensure_ascii=False) if " " in shown or '"' in shown or not shown else shown
