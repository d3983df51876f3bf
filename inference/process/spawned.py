"""A core in a process of its own, for a server with one API process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inference.config import EngineConfig
from inference.core import FrameSink, Life
from inference.errors import ModelUnavailable
from inference.process.remote import RemoteCore
from inference.process.supervision import EngineProcess
from inference.types import CoreRequest, ModelInfo

if TYPE_CHECKING:
    from inference.grammar.vocabulary import GrammarVocabulary


class SpawnedCore:
    """Implements `ReturningCore` by an `EngineProcess` that it owns and a `RemoteCore` attached to it."""

    def __init__(
        self, config: EngineConfig, spawn: Callable[[EngineConfig], EngineProcess] = EngineProcess
    ) -> None:
        self._config = config
        self._spawn = spawn
        self._process: EngineProcess | None = None  # set by `load`, as is the next
        self._remote: RemoteCore | None = None

    @property
    def process(self) -> EngineProcess:
        """Return the process; `load` comes first."""
        assert self._process is not None, "load comes first"
        return self._process

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Spawn the engine and wait until it is ready; raise ModelUnavailable."""
        self._process = self._spawn(self._config)
        self._remote = RemoteCore(self._process.address)
        self._process.start()
        try:
            return self._remote.load(progress)
        except ModelUnavailable as error:  # the process may have ended without a word
            raise ModelUnavailable(self._process.failure or str(error)) from None

    def share(self, vocabulary: GrammarVocabulary) -> None:
        """Have the tokens of grammars known before the first request with one."""
        self._loaded().share(vocabulary)

    def watch(self, changed: Callable[[Life, ModelInfo | None], None]) -> None:
        """Have every change told, on the event loop."""
        self._loaded().watch(changed)

    def start(self, sink: FrameSink) -> None:
        """Begin to read; called on the event loop on which `sink` is then called."""
        self._loaded().start(sink)

    def submit(self, request: CoreRequest) -> None:
        """Queue a request."""
        self._loaded().submit(request)

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        self._loaded().abort(request_id)

    def stop(self) -> None:
        """End the engine; returns when its process has ended."""
        if self._remote is not None:
            self._remote.stop()
        if self._process is not None:
            self._process.stop()

    @property
    def alive(self) -> bool:
        """Return whether the engine is there and takes requests."""
        return self._remote is not None and self._remote.alive

    def _loaded(self) -> RemoteCore:
        assert self._remote is not None, "load comes first"
        return self._remote
