"""What can be told of native code's panics, whose messages may quote what a client sent."""

from __future__ import annotations

import re

from inference.ipc.watchdog import Patience

PANIC = "panicked at"  # in the line that begins what Rust's panic hook writes
# Since Rust 1.73 the place ends that line. Before, the message came first, and could look like any place
PLACE = re.compile(r"thread '[^']*'(?: \(\d+\))? panicked at ([\w./@+~-]+\.rs:\d+:\d+):")
SILENCE_SECONDS = 0.5  # after which what is written has nothing to do with the panic any more
LOOK_SECONDS = 0.1  # how often to look whether it is silent


class Panics:
    """Says what of each line can be told to those who didn't ask for prompts.

    A message may have any lines, also such as Rust writes itself. So nothing that follows a panic is told,
    whatever it says, until a line has ended and nothing has come for a moment.
    """

    def __init__(self) -> None:
        self._silence: Patience | None = None  # since the last bytes after a panic; None: there was none
        self._within = False  # a line that was begun

    @property
    def look_seconds(self) -> float | None:
        """Return how often `look` is to be called if nothing comes, None if it needn't be."""
        return None if self._silence is None else LOOK_SECONDS

    def outline(self, line: str, now: float) -> str | None:
        """Return what can be told of a line: "" is nothing, and None all of it.

        `now` is time.monotonic() seconds, here and below.
        """
        if self._silence is not None:
            return ""
        if PANIC not in line:
            return None
        self._silence = Patience(now, LOOK_SECONDS)
        place = PLACE.fullmatch(line)
        return f"native code panicked at {place[1]}" if place else "native code panicked"

    def hear(self, data: bytes, now: float) -> None:
        """Take note that bytes have come, after `outline` was asked of their lines."""
        self._within = not data.endswith(b"\n")
        if self._silence is not None:
            self._silence.look(now)
            self._silence.begin()

    def look(self, now: float) -> None:
        """Take note that nothing was there to be read, at this time or later."""
        if self._silence is not None and self._silence.look(now) >= SILENCE_SECONDS and not self._within:
            self._silence = None
