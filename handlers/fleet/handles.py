"""The replicas as Ray Serve reaches them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from handlers.fleet.call import Accepted, Answer, Piece, Route
from inference.errors import NotReady

RETRY_SECONDS = 10.0  # for who comes while the replicas can't be had
METRICS_SECONDS = 5.0  # that a replica may take to say what it has counted


class RayFleet:
    """Implements `Fleet` over a handle of the replicas' deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(method_name="answer", stream=True)

    @property
    def populated(self) -> bool:
        """Return whether there has been a replica yet."""
        return bool(self._handle.running_replicas_populated())

    def ask(self, head: dict[str, Any], body: bytes, route: Route) -> Answer:
        """Have a replica answer, whichever `handlers.fleet.router` finds."""
        return RayAnswer(self._handle.remote(head, body, route=route))

    async def metrics(self) -> dict[str, bytes]:
        """Return the metrics of each replica by its name; none at all while one doesn't answer in time."""
        try:
            asked = self._handle.broadcast("metrics")
            found = await asked.results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        except (TimeoutError, DeploymentUnavailableError):
            return {}
        return dict(each for each in found if not isinstance(each, BaseException))


class RayAnswer:
    """Implements `Answer` over what Ray Serve yields of one."""

    def __init__(self, pieces: DeploymentResponseGenerator) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[Accepted | Piece]:
        """Yield the pieces; raises NotReady if there is nobody to ask."""
        try:
            async for piece in self._pieces:
                yield piece
        except DeploymentUnavailableError as error:
            raise NotReady("No replica is ready", RETRY_SECONDS) from error

    def cancel(self) -> None:
        """Have the replica end it; does nothing if it has."""
        self._pieces.cancel()
