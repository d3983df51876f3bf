"""One server behind a socket for the tests of the contract: the whole application on the fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from inference.fake import fake_client
from tests.support import LiveServer, live_server, make_service

FAILING = "make the engine fail"  # a prompt that holds this fails after two tokens


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    """Serve until the session ends; no key is configured."""
    service = make_service(payload_limit=200_000)
    engine = fake_client(service.settings.engine_config(), fail_prompts=[FAILING], fails_after=2)
    with live_server(make_service(service.settings, engine)) as live:
        yield live


@pytest.fixture(scope="session")
def client(server: LiveServer) -> Iterator[httpx.Client]:
    """Talk to that server."""
    with httpx.Client(base_url=server.base_url) as connected:
        yield connected
