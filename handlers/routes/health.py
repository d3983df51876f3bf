"""Is the server ready to generate, and does it get on: asked at five addresses."""

from __future__ import annotations

from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import Refused
from handlers.service import Service
from inference.errors import NotReady
from inference.types import EngineState

RETRY_SECONDS = 1  # probes cost nothing while the engine isn't ready, so they may come soon again


async def health(service: Service, call: Call[None]) -> Response:
    """Answer `GET /health`: 200 with an empty body, or 503."""
    if not service.complete() or not await service.engine.probe():
        raise _unhealthy()
    return Response()


async def livez(service: Service, call: Call[None]) -> Response:
    """Answer `GET /livez`: 200, or 503 once nothing but a new server can help."""
    if service.engine.state is EngineState.FAILED:
        raise _unhealthy()
    return Response()


async def readyz(service: Service, call: Call[None]) -> Response:
    """Answer `GET /readyz`: 200, or 503 with the reason; computes nothing."""
    service.engine.check_ready()
    if not service.complete():
        raise NotReady("Other processes of the server are starting", RETRY_SECONDS)
    return Response()


async def root_health(service: Service, call: Call[None]) -> Response:
    """Answer `GET /`, which load balancers in front of TGI probe."""
    return await health(service, call)


async def ping(service: Service, call: Call[None]) -> Response:
    """Answer `GET /ping`, which SageMaker probes."""
    return await health(service, call)


def _unhealthy() -> Refused:
    headers = {"retry-after": str(RETRY_SECONDS)}
    return Refused("unhealthy", status=503, error_type="healthcheck", headers=headers)
