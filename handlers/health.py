"""Is the server ready to generate: asked at three addresses."""

from __future__ import annotations

from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import Refused
from handlers.service import Service

RETRY_SECONDS = 1  # probes cost nothing while the engine isn't ready, so they may come soon again


async def health(service: Service, call: Call[None]) -> Response:
    """Answer `GET /health`: 200 with an empty body, or 503."""
    if not await service.engine.probe():
        raise Refused(
            "unhealthy", status=503, error_type="healthcheck", headers={"retry-after": str(RETRY_SECONDS)}
        )
    return Response()


async def root_health(service: Service, call: Call[None]) -> Response:
    """Answer `GET /`, which load balancers in front of TGI probe."""
    return await health(service, call)


async def ping(service: Service, call: Call[None]) -> Response:
    """Answer `GET /ping`, which SageMaker probes."""
    return await health(service, call)
