"""The port that the server listens on: had, opened, or told why it can't be."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from handlers.http.server import bind, listen, open_port
from handlers.settings.row import SettingsError


def test_whoever_connects_waits_until_the_server_takes_it() -> None:
    with listen("127.0.0.1", 0) as listening:
        socket.create_connection(listening.getsockname(), timeout=10).close()


def test_at_a_port_that_is_bound_connections_are_refused_until_it_is_opened() -> None:
    with bind("127.0.0.1", 0) as bound:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname(), timeout=10)
        open_port(bound, "127.0.0.1", 0)
        socket.create_connection(bound.getsockname(), timeout=10).close()


def test_a_port_that_another_one_has_bound_and_not_opened_yet_is_told_at_once() -> None:
    with bind("127.0.0.1", 0) as bound, pytest.raises(SettingsError, match="address already in use"):
        bind(*bound.getsockname())


@pytest.mark.parametrize("hostname", ["0.0.0.0", "127.0.0.1"])
def test_a_port_that_a_foreign_process_would_share_is_told_before_it_is_opened(hostname: str) -> None:
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("0.0.0.0", 0))
        with pytest.raises(SettingsError, match="address already in use"):
            bind(hostname, foreign.getsockname()[1])


@pytest.mark.parametrize("hostname", ["0.0.0.0", "127.0.0.1"])
def test_a_port_at_which_connections_of_a_predecessor_linger_can_be_had(hostname: str) -> None:
    with listen(hostname, 0) as listening:
        address = listening.getsockname()
        with socket.create_connection(("127.0.0.1", address[1]), timeout=10) as client:
            accepted, _ = listening.accept()
            accepted.close()  # whoever closes first lingers
            assert client.recv(1) == b""
    with socket.socket() as alone, pytest.raises(OSError, match="in use"):
        alone.bind(address)
    listen(*address).close()


def test_a_port_that_another_one_has_opened_meanwhile_is_told() -> None:
    with socket.socket() as bound, socket.socket() as other:
        for each in (bound, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        other.bind(bound.getsockname())
        other.listen()
        with pytest.raises(
            SettingsError, match=r"`port` 81 can't be bound on x: address already in use; end"
        ):
            open_port(bound, "x", 81)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_on_every_address_of_ipv6_it_listens_on_those_of_ipv4_too() -> None:
    with listen("::", 0) as listening:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listening.getsockname()[1]), timeout=10).close()


def test_a_machine_without_ipv6_can_be_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *others: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *others, **named)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    listen("0.0.0.0", 0).close()
    with pytest.raises(SettingsError, match=r"on ::: address family not supported .*; give .* 0\.0\.0\.0"):
        listen("::", 0)


@pytest.mark.parametrize(
    ("hostname", "told"),
    [
        ("127.0.0.1", "address already in use; end what listens there, or choose another by --port or PORT"),
        ("192.0.2.1", r".*; give an address of this machine by --hostname, 0\.0\.0\.0 for all of them"),
        ("nobody.invalid", r".*; give an address of this machine by --hostname"),
    ],
)
def test_a_port_that_can_not_be_had_is_told_with_its_reason(hostname: str, told: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"^`port` {port} can't be bound on {hostname}: {told}"):
            listen(hostname, port)


def test_a_port_that_only_some_may_have_is_told_with_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    told = "`port` 80 can't be bound on ::: permission denied; those under 1024 need .* by --port or PORT"
    with pytest.raises(SettingsError, match=f"^{told}"):
        listen("::", 80)
