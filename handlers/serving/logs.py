"""Logs: one line each, plain or JSON, in the form of TGI's, on standard output.

Fields given with `extra=` follow the message: `logger.info("Success", extra={"total_time": "48ms"})` is
`... INFO parley.access: Success total_time=48ms`, or a member of a JSON line. What is logged
while a request is answered has its id: a field, or a member of `span` in a JSON line. No line can be forged:
control characters of what clients sent come escaped. An exception is told by its type and stack: its message
may quote what a client sent, and is for those who ask for prompts. So is what native code says as it panics.

Nobody waits for whoever reads the log. Lines that find no room are dropped, counted, and announced in the log
as soon as it flows again.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from handlers.account import current_account
from handlers.serving.outbox import Outbox
from inference.last_resorts import CarefulHandler
from inference.outline import outline

if TYPE_CHECKING:
    from handlers.settings.table import Settings

WAITING_BYTES = 4 * 1024 * 1024  # of lines that nobody has read yet
FLUSH_SECONDS = 1.0  # that the end of a process, or of a configuration, waits for its last lines

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
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "taskName", "color_message", "span", "outline")
}
# what ends a line somewhere, or moves a terminal's cursor
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    **{ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"},
    **{0x2028: "\\u2028", 0x2029: "\\u2029"},
}

HEAD = ("timestamp", "level", "message")  # of a JSON line
JSON_ENDS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}

WITHHELD = "(messages are withheld: --log-prompts shows them)"
QUOTING = "(what it says is withheld, as it may quote what a client sent: --log-prompts shows it)"


def directives(value: str) -> str:
    """Check a LOG_LEVEL; raises ValueError."""
    levels(value)
    return value.strip().lower()


def levels(value: str) -> dict[str, int]:
    """Return the level of each logger that a LOG_LEVEL names, e.g. `info,text_generation_router=debug`.

    A level that stands alone is for Parley's own loggers, and so are TGI's targets, which count more wherever
    they stand.
    """
    found = dict.fromkeys(OWN, logging.INFO)
    parts = [part.strip().rpartition("=") for part in value.lower().split(",")]
    for target, separator, name in sorted(parts, key=lambda part: part[1]):  # those without a target first
        if name.strip() not in LEVELS:
            raise ValueError(f"must be {', '.join(LEVELS)}, or a list of target=level")
        if not separator or target.strip().startswith(TGI_TARGETS):
            found |= dict.fromkeys(OWN, LEVELS[name.strip()])
        else:
            found[target.strip().replace("::", ".")] = LEVELS[name.strip()]
    return found


def configure(
    log_level: str,
    *,
    json_output: bool = False,
    colorize: bool | None = None,
    prompts: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Send all logs to `stream` (standard output), in one form; replaces an earlier configuration.

    Exceptions' messages, and those of panics, are told with `prompts` only.
    """
    target = sys.stdout if stream is None else stream
    if isinstance(target, io.TextIOWrapper):
        target.reconfigure(errors="backslashreplace")  # a record that can't be encoded would be lost
    colour = target.isatty() if colorize is None else colorize
    handler: logging.Handler = StreamLines(target)
    if _has_descriptor(target):
        handler = QueuedLines(target, target.fileno())
    handler.setFormatter(JsonLines(prompts) if json_output else PlainLines(prompts, colour))
    handler.addFilter(add_span)
    if not prompts:
        handler.addFilter(can_be_told)
    for earlier in logging.root.handlers:
        if isinstance(earlier, QueuedLines):
            earlier.flush()  # its lines come before those of the next, which may have the same descriptor
            earlier.close()
    logging.root.handlers = [handler]
    logging.root.setLevel(OTHERS)
    for name, level in levels(log_level).items():
        logging.getLogger(name).setLevel(level)
    # its line for each request would stand beside parley.access's
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(True)


def follow(settings: Settings) -> None:
    """Send all logs to standard output, by the settings."""
    configure(
        settings.log_level,
        json_output=settings.json_output,
        colorize=settings.log_colorize,
        prompts=settings.log_prompts,
    )


def tell_dropped(tell: Callable[[int], None]) -> None:
    """Have the numbers of lines told that are dropped, as nobody reads the log; from any thread."""
    for handler in logging.root.handlers:
        if isinstance(handler, QueuedLines):
            handler.outbox.tell_dropped(tell)


class StreamLines(CarefulHandler, logging.StreamHandler[TextIO]):
    """Writes lines to a stream at once."""


class QueuedLines(CarefulHandler):
    """Writes lines to a stream's descriptor, by a thread that may wait where those who log must not."""

    def __init__(self, stream: TextIO, descriptor: int) -> None:
        super().__init__()
        self._encoding = stream.encoding
        self.outbox = Outbox(descriptor, WAITING_BYTES, self._announcement)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line."""
        try:
            self.outbox.put(self._bytes(record))
        except Exception:  # as all handlers do: what is wrong with a record is not its caller's to bear
            self.handleError(record)

    def flush(self) -> None:
        """Wait for what is queued, for a moment at most."""
        self.outbox.flush(FLUSH_SECONDS)

    def close(self) -> None:
        """Take no more lines."""
        self.outbox.close()
        super().close()

    def _bytes(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _announcement(self, dropped: int) -> bytes:
        message = "%d lines of this log were dropped: they were not read, or there was no room for them"
        record = logging.LogRecord("parley", logging.WARNING, __file__, 0, message, (dropped,), None)
        return self._bytes(record)


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:  # in memory: nobody can keep it waiting
        return False


def add_span(record: logging.LogRecord) -> bool:
    """Note in a record which request was being answered when it was made."""
    account = current_account()
    if account is not None:
        told = {"name": account.operation, "request_id": account.request_id, "trace_id": account.trace_id}
        record.span = {name: value for name, value in told.items() if value}
    return True


def can_be_told(record: logging.LogRecord) -> bool:
    """Return whether a record has anything to tell to those who didn't ask for prompts."""
    return getattr(record, "outline", None) != ""


class Lines(logging.Formatter):
    """What both forms tell of a record; what may quote a prompt with `prompts` only."""

    def __init__(self, prompts: bool = False) -> None:
        super().__init__()
        self.prompts = prompts

    def message(self, record: logging.LogRecord) -> str:
        """Return the message, or its outline; of asyncio's up to where it shows exceptions and arguments."""
        told = getattr(record, "outline", None)
        if told is not None and not self.prompts:
            return f"{told} {QUOTING}"
        text = record.getMessage()
        if self.prompts or record.name != "asyncio":
            return text
        return text.partition("\n")[0].partition("(")[0]

    def trace(self, record: logging.LogRecord) -> str:
        """Return what is told of the record's exception, "" if it has none."""
        if not record.exc_info:
            return ""
        error = record.exc_info[1]
        if self.prompts or error is None:
            return self.formatException(record.exc_info)
        return f"{outline(error)}\n{WITHHELD}"


class PlainLines(Lines):
    """`TIME LEVEL LOGGER: MESSAGE field=value`."""

    def __init__(self, prompts: bool = False, colorize: bool = False) -> None:
        super().__init__(prompts)
        self.colorize = colorize

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback's after it."""
        level = f"{_level(record):>5}"
        if self.colorize and record.levelno in COLOURS:
            level = f"\x1b[{COLOURS[record.levelno]}m{level}\x1b[0m"
        told = _fields(record)
        span = getattr(record, "span", None)
        if span:
            told.setdefault("request_id", span["request_id"])
        fields = "".join(f" {key}={_plain(value)}" for key, value in told.items())
        line = f"{_time(record)} {level} {record.name}: {_one_line(self.message(record))}{fields}"
        trace = self.trace(record)
        # indented: what an exception quotes can't pass for a line of its own
        return "\n".join([line, *(f"    {_one_line(each)}" for each in trace.split("\n") if trace)])


class JsonLines(Lines):
    """An object a line, with the members of TGI's router: timestamp, level, message, fields, target, span."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = dict.fromkeys(HEAD)  # they come first, and no field takes their place
        line |= _fields(record) | {"target": record.name}
        line |= {"timestamp": _time(record), "level": _level(record), "message": self.message(record)}
        trace = self.trace(record)
        if trace:
            line["exception"] = trace
        span = getattr(record, "span", None)
        if span:
            line["span"] = span
        text = _json(line)
        # what JSON lets stand is escaped, too: some readers take these for the end of a line
        return text if text.isprintable() else text.translate(JSON_ENDS)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was given with `extra=`; what begins with `_` is some library's own, of each record."""
    return {key: value for key, value in vars(record).items() if key not in STANDARD and key[0] != "_"}


def _json(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits: slower, and never fails
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    """Return the level in TGI's words."""
    return {"WARNING": "WARN", "CRITICAL": "ERROR"}.get(record.levelname, record.levelname)


def _one_line(message: str) -> str:
    """Keep what a client sent from forging a line of its own."""
    return message if message.isprintable() else message.translate(CONTROLS)


def _plain(value: object) -> str:
    if type(value) in (int, float):
        return repr(value)
    shown = _one_line(str(value))
    return json.dumps(shown, ensure_ascii=False) if " " in shown or '"' in shown or not shown else shown
