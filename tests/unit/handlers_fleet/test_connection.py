"""Where a cluster can be begun."""

from __future__ import annotations

import os
import sys

import pytest

from inference.errors import ModelUnavailable

ray = pytest.importorskip("ray")
from ray._private.utils import validate_socket_filepath  # noqa: E402

from handlers.fleet.connection import LONGEST_ADDRESS, SOCKET, connect  # noqa: E402

MOST = LONGEST_ADDRESS - len(SOCKET.format(os.getpid()))


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have no cluster begun; gives the addresses of those that would be."""
    addresses: list[str] = []
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **_: addresses.append(address))
    monkeypatch.setattr(sys, "platform", "linux")
    return addresses


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_a_folder_in_which_rays_sockets_can_not_be_is_told(
    name: str, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, folder := "/" + "é" * MOST)
    told = (
        rf"`{name}` must have at most {MOST} bytes: .* Given: {len(folder.encode())}, /é+\. Set RAY_TMPDIR to"
    )
    with pytest.raises(ModelUnavailable, match=told):
        connect("local")
    assert not begun


def test_a_folder_in_which_they_just_can_be_is_taken(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/" + "x" * 500)  # which Ray doesn't look at then
    monkeypatch.setenv("RAY_TMPDIR", folder := "x" * MOST)
    connect("local")
    assert begun == ["local"]
    path = folder + SOCKET.format(os.getpid())
    validate_socket_filepath(path)
    with pytest.raises(OSError, match="AF_UNIX"):
        validate_socket_filepath(path + "x")


def test_to_a_cluster_that_there_is_already_no_folder_matters(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv("TMPDIR", "/" + "x" * 500)
    connect("local")
    assert begun == ["auto"]
