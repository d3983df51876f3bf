"""Where shards of several machines find each other."""

from __future__ import annotations

import socket

from torch.distributed import TCPStore


def open_store(address: str) -> TCPStore:
    """Return a store for shards to meet, at a free port of this machine's address; raise OSError."""
    listening = socket.create_server((address, 0), family=_family(address))
    port = listening.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def join_store(place: tuple[str, int]) -> TCPStore:
    """Return the store that another process has opened."""
    return TCPStore(*place, is_master=False, wait_for_workers=False)


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
