from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.image_server import ImageServer, image_server


@pytest.fixture
def anyio_backend() -> str:
    """Run tests that are marked `anyio` on asyncio alone, which is what the server runs on."""
    return "asyncio"


@pytest.fixture
def images() -> Iterator[ImageServer]:
    """Serve images on this machine."""
    with image_server() as server:
        yield server
