"""Whether the engine can generate: taken for granted until it fails a request, then tried."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from inference.frontend.generation import Generation
from inference.types import Request

log = logging.getLogger(__name__)

PROBE_SECONDS = 10.0  # a real one-token generation that takes longer counts as unhealthy


class Health:
    """TGI's two levels of health: nothing is computed while nothing has failed."""

    def __init__(self, submit: Callable[[Request], Awaitable[Generation]]) -> None:
        self._submit = submit
        self._good = True  # false from the engine's first failure to the next token
        self._probe: asyncio.Task[bool] | None = None

    def doubt(self) -> None:
        """Have the next probe generate; called when the engine failed a generation.

        Not where the request's own grammar, images or text did: one caller's must not speak for all.
        """
        self._good = False

    def trust(self) -> None:
        """Take it for granted again; called with every token, whosever it is."""
        if self._good:
            return
        self._good = True
        if self._probe is not None:  # what it was to find out is known, and it may wait behind many
            self._probe.cancel()
            self._probe = None

    async def probe(self) -> bool:
        """Return whether one token can be generated; probes at the same time share one generation."""
        if self._good:
            return True
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._generate_one())
        probe = self._probe
        await asyncio.wait([probe])  # who leaves meanwhile takes it from nobody else
        return self._good if probe.cancelled() else probe.result()

    async def _generate_one(self) -> bool:
        request = Request(id=f"probe-{time.monotonic_ns()}", prompt="liveness", max_new_tokens=1)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                generation = await self._submit(request)
                try:
                    await generation.collect()
                finally:
                    await generation.aclose()
        except Exception as error:  # whatever it is, the engine can't generate, and that is the answer
            log.warning("health probe failed: %s: %s", type(error).__name__, error)
            return False
        return self._good
