"""Where the engine stands, and what requests are told that come too early or too late."""

from __future__ import annotations

import time

from inference.errors import NotReady
from inference.types import EngineState

LOADING_RETRY_SECONDS = 5.0
DRAINING_RETRY_SECONDS = 10.0
FAILED_RETRY_SECONDS = 60.0
LEAST_RETRY_SECONDS = 1.0


class Readiness:
    """LOADING until it is ready for the first time, and again while a lost engine is started anew."""

    def __init__(self) -> None:
        self.state = EngineState.LOADING
        self._began = time.monotonic()
        self._load_seconds: float | None = None  # that the first start took; None before
        self.losses = 0  # of engines that had been ready
        self._step = ""  # of the first start, in a line

    def begin(self) -> None:
        """Note when loading begins."""
        self._began = time.monotonic()

    def note(self, step: str) -> None:
        """Note what loading has come to; from any thread."""
        self._step = step

    def ready(self) -> None:
        """Take requests from now on, unless the server ends already."""
        if self._load_seconds is None:
            self._load_seconds = time.monotonic() - self._began
        if self.state is EngineState.LOADING:
            self.state = EngineState.READY

    def lost(self) -> None:
        """Take none until the engine is back."""
        if self.state is EngineState.READY:
            self.state = EngineState.LOADING
            self.losses += 1

    def drain(self) -> None:
        """Take no more: the server ends."""
        if self.state is not EngineState.FAILED:
            self.state = EngineState.DRAINING

    def fail(self) -> None:
        """Take none any more: there is no engine, and there will be none."""
        self.state = EngineState.FAILED

    def changed(self) -> NotReady:
        """Return what to tell a request that was prepared for an engine which was started again since."""
        return NotReady("The engine was started again meanwhile", LEAST_RETRY_SECONDS)

    def refusal(self) -> NotReady:
        """Return what a request is told now, and when it may come back."""
        if self.state in (EngineState.FAILED, EngineState.READY):  # its death may not have been noted yet
            return NotReady("The engine has failed", FAILED_RETRY_SECONDS)
        if self.state is not EngineState.LOADING:
            return NotReady("The server shuts down", DRAINING_RETRY_SECONDS)
        if self._load_seconds is None:
            return NotReady("The model is loading", LOADING_RETRY_SECONDS)
        seconds = min(max(self._load_seconds, LEAST_RETRY_SECONDS), FAILED_RETRY_SECONDS)
        return NotReady("The engine is being started again", seconds)

    def reason(self) -> NotReady:
        """Return the same with more of it, for whoever asks why."""
        refusal = self.refusal()
        if self.state is EngineState.LOADING and self._load_seconds is None and self._step:
            return NotReady(f"{refusal}: {self._step}", refusal.retry_after)
        return refusal
