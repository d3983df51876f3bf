"""The servers of the contract's tests: the whole application on the fake engine, unless another is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from inference.fake import fake_client
from tests.support import LiveServer, live_server, make_service

if TYPE_CHECKING:
    from tests.contract.properties.target import Target

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


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    """Give the generated tests the server in this process, or the one that the environment names."""
    # Not above: it brings schemathesis, which the other tests can do without
    from tests.contract.properties import target as targets

    with targets.configured() as configured:
        yield configured
