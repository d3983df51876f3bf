"""The folder that is tested, and what a server exports after traffic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.deploy.promql import Sample
from tests.deploy.scraped import scraped


@pytest.fixture(scope="session")
def deploy() -> Path:
    """Return the folder."""
    return Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    """Return what a server exports after traffic."""
    return asyncio.run(scraped())
