"""The line between the client and whatever generates tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inference.types import CoreRequest, Frame, ModelInfo

FrameSink = Callable[[Frame], None]


class Core(Protocol):
    """A token generator: ids in, one frame per step out.

    `load` is called once, off the event loop. After it returns, `start` gives the sink, which is
    called from the core's own thread. Every request submitted ends in exactly one `CoreOutput`
    with `finish`, or one `CoreFailure`, unless it is aborted: then nothing more comes.
    """

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Load the model and return what it is; raise ModelUnavailable."""

    def start(self, sink: FrameSink) -> None:
        """Begin to step; `sink` gets every frame, and a failure of all requests if the loop dies."""

    def submit(self, request: CoreRequest) -> None:
        """Queue a request; never blocks, callable from any thread."""

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step; unknown ids are ignored."""

    def stop(self) -> None:
        """End the loop and free the model; returns when the thread has ended."""

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
