"""A core in a process of its own, for a server with one API process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from inference.config import EngineConfig
from inference.core import Life
from inference.errors import ModelUnavailable
from inference.process.deferred import LaterCore
from inference.process.remote import STOPPED_EARLY, RemoteCore
from inference.process.supervision import EngineProcess
from inference.types import ModelInfo

if TYPE_CHECKING:
    from inference.ipc.grammar_tokens import GrammarTokens


class SpawnedCore(LaterCore):
    """Implements `ReturningCore` by an `EngineProcess` that it owns and a `RemoteCore` attached to it."""

    def __init__(
        self, config: EngineConfig, spawn: Callable[[EngineConfig], EngineProcess] = EngineProcess
    ) -> None:
        self._config = config
        self._spawn = spawn
        self._process: EngineProcess | None = None  # set by `load`, as is the next
        self._remote: RemoteCore | None = None
        self._lock = threading.Lock()  # held while the process is started, and to say that none is to be
        self._stopped = False

    @property
    def process(self) -> EngineProcess:
        """Return the process; `load` comes first."""
        assert self._process is not None, "load comes first"
        return self._process

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Spawn the engine and wait until it is ready; raise ModelUnavailable."""
        with self._lock:
            if self._stopped:  # by another thread
                raise ModelUnavailable(STOPPED_EARLY)
            self._process = process = self._spawn(self._config)
            self._remote = remote = RemoteCore(process.address)
            process.watch(lambda life: remote.lose() if process.held else None)
            process.start()
        try:
            return remote.load(progress)
        except ModelUnavailable as error:  # the process may have ended without a word
            raise ModelUnavailable(process.failure or str(error)) from None

    def share(self, tokens: GrammarTokens) -> None:
        """Have the tokens of grammars known before the first request with one."""
        self._loaded().share(tokens)

    def watch(self, changed: Callable[[Life, ModelInfo | None], None]) -> None:
        """Have every change told, on the event loop."""
        self._loaded().watch(changed)

    def stop(self) -> None:
        """End the engine; returns when its process has ended."""
        with self._lock:
            self._stopped = True
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
