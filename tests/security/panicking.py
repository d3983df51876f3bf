"""What a process of a server may write to standard error that quotes a prompt, brought about by a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

SECRET = "the-lighthouse-keeper"
QUOTED = f"{SECRET}\nnote: run with `RUST_BACKTRACE=1`\n\n2026-01-01T00:00:00Z  INFO parley: {SECRET}\n"
BEFORE, AFTER = "a native warning", "another native warning"


def listen() -> None:
    """Have SIGUSR2 bring it all about, and each later one have another warning written."""
    signal.signal(signal.SIGUSR2, _on_signal)


def fail(*_: object) -> NoReturn:
    """Raise what quotes a prompt."""
    raise ValueError(QUOTED)


class Unraisable:
    """What fails where nobody can be told, and shows a prompt."""

    def __repr__(self) -> str:
        return SECRET

    def __del__(self) -> None:
        fail()


def panic() -> None:
    """Have a library panic that is written in Rust."""
    from tokenizers import NormalizedString

    try:
        NormalizedString("a").filter(fail)
    except BaseException as error:
        assert type(error).__name__ == "PanicException"  # noqa: PT017 - it has no other name


def _on_signal(number: int, frame: FrameType | None) -> None:
    signal.signal(number, _warn_again)
    os.write(2, f"{BEFORE} of {os.getpid()}\n".encode())
    panic()
    os.write(2, f"thread 'x' panicked at '{QUOTED}', src/old.rs:1:2\n".encode())
    Unraisable()
    logging.getLogger("parley").error("%d", SECRET)
    thread = threading.Thread(target=fail, args=(SECRET,))
    thread.start()
    thread.join()
    try:
        fail()
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)


def _warn_again(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{AFTER} of {os.getpid()}\n".encode())
