"""The line between the client and whatever generates tokens."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from inference.types import AdapterChange, CoreRequest, Frame, Image, ModelInfo

if TYPE_CHECKING:
    from inference.ipc.grammar_tokens import GrammarTokens

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


@runtime_checkable
class SeeingCore(Core, Protocol):
    """A core that can be shown images, if its model sees."""

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        """Have a request's images looked at, before it is submitted under this id; callable from any thread.

        Only requests with the same `salt` share what is kept of an image. One `Looked` of a frame tells what
        became of them. Until the request is submitted an abort ends this.
        """


@runtime_checkable
class PacedCore(Core, Protocol):
    """A core that computes nothing large for those who have enough to read."""

    def pace(self, full: Callable[[str], bool]) -> None:
        """Have `full` asked, of a request's id and from the core's thread, before it is let in.

        Of those alone that are told what there is of their prompts: while it says so they wait, and others
        go on.
        """

    def ask_again(self) -> None:
        """Have it looked who may be let in now; callable from any thread."""


@runtime_checkable
class AdaptingCore(Core, Protocol):
    """A core whose model takes up adapters while it runs, if that was asked for."""

    def change(self, change: AdapterChange) -> None:
        """Have an adapter loaded or unloaded; callable from any thread.

        One `AdapterChanged` of a frame tells what became of it, and with it or before it came the edition of
        those that there are now.
        """

    def heard(self, edition: int) -> None:
        """Know that no request comes any more for an adapter that isn't in an edition; from any thread."""


class LocalCore(Core, Protocol):
    """A core that steps in this process, for whoever must hear of its end at once."""

    def join(self) -> None:
        """Wait until the loop has ended; returns at once before `start`."""

    @property
    def step(self) -> int | None:
        """Return the number of the step that is being computed, None between steps; from any thread."""


class Life(Enum):
    """Where a core that can come back stands."""

    UP = auto()
    DOWN = auto()  # and being started again
    GONE = auto()  # for good


@runtime_checkable
class ReturningCore(Core, Protocol):
    """A core that is started again after its death; `alive` is false meanwhile.

    Requests that ran then have ended in a `CoreFailure` each, as have those submitted meanwhile.
    """

    def watch(self, changed: Callable[[Life, ModelInfo | None], None]) -> None:
        """Have every change told, from where frames come; UP brings what was loaded. Comes before `start`."""

    def share(self, tokens: GrammarTokens) -> None:
        """Have the tokens of grammars known before the first request with one; may take a while."""
