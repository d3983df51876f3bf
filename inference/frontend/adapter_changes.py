"""Adapters that are to come or go: asked of the core, and awaited."""

from __future__ import annotations

import asyncio
import uuid

from inference.core import AdaptingCore, Core
from inference.errors import AdapterRefused, GenerationFailed
from inference.types import AdapterChange, AdapterChanged, AdapterEdition

NO_CHANGES = "Adapters can't be loaded into this engine while it runs"


class AdapterChanges:
    """Asks a core for changes; belongs to one event loop.

    One that nobody awaits any more is made all the same.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def load(self, name: str, source: str, *, replaces: bool = False) -> None:
        """Have an adapter loaded, and known to all who ask; raise AdapterRefused or GenerationFailed."""
        await self._ask(AdapterChange(uuid.uuid4().hex, name, source, replaces))

    async def unload(self, name: str) -> None:
        """Have an adapter named by nobody any more; raise AdapterRefused or GenerationFailed."""
        await self._ask(AdapterChange(uuid.uuid4().hex, name))

    def heard(self, edition: AdapterEdition) -> None:
        """Tell the core that requests name adapters by an edition from now on."""
        if isinstance(self._core, AdaptingCore):
            self._core.heard(edition.number)

    def deliver(self, changed: AdapterChanged) -> None:
        """Tell who waits what became of a change."""
        refusal = AdapterRefused(changed.refusal, missing=changed.missing) if changed.refusal else None
        self._settle(changed.id, refusal)

    def fail(self, id: str, message: str) -> None:
        """Tell who waits that nothing more will come."""
        self._settle(id, GenerationFailed(message))

    def fail_all(self, message: str) -> None:
        """Tell everyone who waits the same."""
        for id in list(self._waiting):
            self.fail(id, message)

    async def _ask(self, change: AdapterChange) -> None:
        if not isinstance(self._core, AdaptingCore):
            raise AdapterRefused(NO_CHANGES)
        waiting = self._waiting[change.id] = asyncio.get_running_loop().create_future()
        try:
            self._core.change(change)
            await waiting
        finally:
            del self._waiting[change.id]

    def _settle(self, id: str, error: Exception | None) -> None:
        waiting = self._waiting.get(id)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
