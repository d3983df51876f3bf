"""What the tests of several replicas share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run tests that are marked `anyio` on asyncio alone, which is what the server runs on."""
    return "asyncio"
