"""The replicas as Ray Serve reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.handle import DeploymentHandle

from handlers.fleet.call import Answer

METRICS_SECONDS = 5.0  # that a replica may take to say what it has counted


class RayFleet:
    """Implements `Fleet` over a handle of the replicas' deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(method_name="answer", stream=True)

    @property
    def populated(self) -> bool:
        """Return whether there has been a replica yet."""
        return bool(self._handle.running_replicas_populated())

    def ask(
        self, head: dict[str, Any], body: bytes, beginnings: Sequence[bytes], avoid: Sequence[str]
    ) -> Answer:
        """Have a replica answer, whichever `handlers.fleet.router` finds."""
        answer: Answer = self._handle.remote(head, body, beginnings=beginnings, avoid=tuple(avoid))
        return answer

    async def metrics(self) -> dict[str, bytes]:
        """Return the metrics of each replica, by its name; raises TimeoutError if one says nothing."""
        return dict(await self._handle.broadcast("metrics").results_async(timeout_s=METRICS_SECONDS))
