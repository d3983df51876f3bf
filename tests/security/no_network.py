"""A server in this process, asked without a socket: so that any socket that is opened is one too many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from handlers.app import create_app
from tests.support import make_service, serving


def asked_in_process(requests: Sequence[tuple[str, Any]]) -> list[httpx.Response]:
    """Return the answers to bodies by their paths, of a server that is made for them."""

    async def ask() -> list[httpx.Response]:
        service = make_service()
        async with serving(create_app(service), service) as client:
            return [await client.post(path, json=body) for path, body in requests]

    return asyncio.run(ask())
