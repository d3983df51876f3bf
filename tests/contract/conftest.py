"""The servers of the contract's tests: the whole application on the fake engine, unless another is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.fakes.vision import FAKE_VISION
from tests.contract.seeing import Serve
from tests.image_server import ImageServer, image_server
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
    with server.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def images() -> Iterator[ImageServer]:
    """Serve images on this machine."""
    with image_server() as server:
        yield server


@pytest.fixture
def serve(images: ImageServer) -> Iterator[Serve]:
    """Return a function that serves a fake engine that sees, with settings by name."""
    with ExitStack() as stack:

        def start(**changes: Any) -> LiveServer:
            settings = Settings(validate_responses=True, image_hosts=(images.entry,))
            service = make_service(settings, **changes)
            engine = fake_client(service.settings.engine_config(), vision=FAKE_VISION)
            return stack.enter_context(live_server(make_service(service.settings, engine)))

        yield start


@pytest.fixture(scope="module")
def seeing(images: ImageServer) -> Iterator[httpx.Client]:
    """Talk to a fake engine that sees, and may ask that server."""
    settings = Settings(validate_responses=True, image_hosts=(images.entry,))
    engine = fake_client(settings.engine_config(), vision=FAKE_VISION)
    with live_server(make_service(settings, engine)) as live, live.client() as client:
        yield client


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    """Give the generated tests the server in this process, or the one that the environment names."""
    # Not above: it brings schemathesis, which the other tests can do without
    from tests.contract.properties import target as targets

    with targets.configured() as configured:
        yield configured
