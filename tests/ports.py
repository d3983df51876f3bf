"""Ports for servers that are started by their number, and not by a socket that already listens."""

from __future__ import annotations

import itertools
import os
import random
import socket

HOST = "127.0.0.1"
FIRST, EACH = (
    20_000,
    2_000,
)  # below what Linux gives to connections, so that no client gets one before its server
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
OWN = range(FIRST + WORKER * EACH, FIRST + (WORKER + 1) * EACH)  # no other process of the same run has these
_turns = itertools.count(random.randrange(EACH))


def free_port() -> int:
    """Return a port that nothing listens on, another one each time."""
    for turn in itertools.islice(_turns, EACH):
        port = OWN[turn % EACH]
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all of the ports {OWN} are taken")
