"""Python's last resorts: errors that nobody handles, and log records that can't be written.

Python writes them to standard error with all their words, which may quote what a client sent. Here they are
records of the log, whose formatter tells an exception without its message.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType

LOG = logging.getLogger("python")  # none of ours, whose level may hide how a process ends


def install() -> None:
    """Have errors that nobody handles told in the log, in this process."""
    sys.excepthook = _tell_uncaught
    sys.unraisablehook = _tell_unraisable
    threading.excepthook = _tell_of_thread


class CarefulHandler(logging.Handler):
    """Tells of a record that it can't handle by another one: where it came from and what went wrong."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell of it; raises nothing, and says nothing if not even that can be told."""
        if not isinstance(record, Untold):
            self.emit(Untold(record))


class Untold(logging.LogRecord):
    """Stands in for a record that can't be handled, as the error that is being handled says."""

    def __init__(self, record: logging.LogRecord) -> None:
        message = "a record of %s can't be logged, from %s:%s"
        told = (record.name, record.pathname, record.lineno)
        super().__init__(LOG.name, logging.ERROR, __file__, 0, message, told, sys.exc_info())


def _tell_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        LOG.critical("an error was handled by nobody", exc_info=(kind, error, traceback))


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = "that has ended" if args.thread is None else args.thread.name
    told = (args.exc_type, args.exc_value, args.exc_traceback)
    LOG.error("a thread was ended by an error: %s", name, exc_info=told)


def _tell_unraisable(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is None:
        LOG.error("an error can't be raised, in a %s: %s", _kind(args.object), args.exc_type.__qualname__)
        return
    told = (args.exc_type, args.exc_value, args.exc_traceback)
    LOG.error("an error can't be raised, in a %s", _kind(args.object), exc_info=told)


def _kind(thing: object) -> str:
    """Return a thing's type: what it says of itself may quote what a client sent."""
    return type(thing).__qualname__
