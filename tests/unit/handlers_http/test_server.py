"""The port that the server listens on."""

from __future__ import annotations

import socket

import pytest

from handlers.http.server import listen
from handlers.settings_table import SettingsError


def test_whoever_connects_waits_until_the_server_takes_it() -> None:
    with listen("127.0.0.1", 0) as listening:
        socket.create_connection(listening.getsockname(), timeout=10).close()


@pytest.mark.parametrize(("hostname", "reason"), [("127.0.0.1", "address already in use"), ("192.0.2.1", "")])
def test_a_port_that_can_not_be_had_is_told_with_its_reason(hostname: str, reason: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"`port` {port} can't be bound on {hostname}: {reason}"):
            listen(hostname, port)
