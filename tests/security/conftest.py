"""One server for the tests that need no settings of their own, and clients for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import NoReturn

import httpx
import pytest

from tests.support import LiveServer, live_server


@pytest.fixture(scope="package")
def server() -> Iterator[LiveServer]:
    """Serve a fake engine with every default, behind a socket."""
    with live_server() as live:
        yield live


@pytest.fixture(scope="package")
def client(server: LiveServer) -> Iterator[httpx.Client]:
    """Talk to that server."""
    with server.client() as connected:
        yield connected


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every connection and every look-up of a name, and let none succeed; return the notes."""
    attempts: list[str] = []

    def noted(what: str) -> Callable[..., NoReturn]:
        def attempt(*args: object, **_: object) -> NoReturn:
            attempts.append(f"{what} {args[-1]}")
            raise OSError("no network here")

        return attempt

    monkeypatch.setattr(socket.socket, "connect", noted("connect"))
    monkeypatch.setattr(socket.socket, "connect_ex", noted("connect"))
    monkeypatch.setattr(socket, "getaddrinfo", noted("look up"))
    monkeypatch.setattr(socket, "create_connection", noted("connect"))
    return attempts
