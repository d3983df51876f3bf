"""A core that is made when it is loaded, so that the port is open before torch is imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from inference.config import EngineConfig
from inference.core import AdaptingCore, Core, FrameSink, LocalCore, SeeingCore
from inference.environment import temporary_directory
from inference.errors import ModelUnavailable
from inference.types import AdapterChange, CoreRequest, Image, ModelInfo


def torch_core(config: EngineConfig) -> LocalCore:
    """Return a core over torch; raise ModelUnavailable where that isn't installed, or can't be imported."""
    temporary_directory()
    try:
        from inference.engine.engine import TorchCore
    except ModuleNotFoundError as error:
        raise ModelUnavailable(
            f"{error.name} is not installed, and the engine needs it: install Parley with its extra `engine`"
        ) from error
    return TorchCore(config)


class LaterCore(ABC):
    """The part of a `Core` that is another one's, which is there once it was loaded."""

    def start(self, sink: FrameSink) -> None:
        """Begin to step."""
        self._loaded().start(sink)

    def submit(self, request: CoreRequest) -> None:
        """Queue a request."""
        self._loaded().submit(request)

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        """Have a request's images looked at."""
        core = self._loaded()
        assert isinstance(core, SeeingCore), "a core that is put off, or elsewhere, is one that can see"
        core.look(request_id, images, salt)

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        self._loaded().abort(request_id)

    def change(self, change: AdapterChange) -> None:
        """Have an adapter loaded or unloaded."""
        self._adapting().change(change)

    def heard(self, edition: int) -> None:
        """Know that no request comes any more for an adapter that isn't in an edition."""
        self._adapting().heard(edition)

    def _adapting(self) -> AdaptingCore:
        core = self._loaded()
        assert isinstance(core, AdaptingCore), "a core that is put off, or elsewhere, is one that adapts"
        return core

    @abstractmethod
    def _loaded(self) -> Core:
        """Return the other one."""


class DeferredCore(LaterCore):
    """Implements `Core` by the one that `make` returns, called by `load`."""

    def __init__(self, make: Callable[[], Core]) -> None:
        self._make = make
        self._core: Core | None = None  # set by `load`

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Make the core and load it; raise ModelUnavailable."""
        self._core = self._make()
        return self._core.load(progress)

    def stop(self) -> None:
        """End the loop, if there is one."""
        if self._core is not None:
            self._core.stop()

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
        return self._core is not None and self._core.alive

    def _loaded(self) -> Core:
        assert self._core is not None, "load comes first"
        return self._core
