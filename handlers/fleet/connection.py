"""The connection of this process to a cluster."""

from __future__ import annotations

import logging
import os
import sys

import ray

from inference.errors import ModelUnavailable

# the longest that Ray has in its folder for temporary files, and may have as a whole
SOCKET = "/ray/session_2000-01-01_00-00-00_000000_{}/sockets/plasma_store"
LONGEST_ADDRESS = (104 if sys.platform == "darwin" else 108) - 1  # bytes, of sockets of AF_UNIX


def nodes() -> list[dict[str, float]]:
    """Return the resources of each machine of the cluster that is connected: cores as CPU, GPU, memory."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def cpus_here() -> int:
    """Return how many CPUs Ray counts on this process's machine."""
    here = ray.get_runtime_context().get_node_id()
    return next((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["NodeID"] == here), 0)


def connect(otherwise: str | None) -> None:
    """Connect to the cluster of RAY_ADDRESS, or `otherwise`; does nothing if this process is connected.

    `otherwise` is "local" for one that is begun here and ends with this process, None for whichever runs on
    this machine. Raises ConnectionError if there is none at RAY_ADDRESS, ModelUnavailable if one can't
    be begun.
    """
    if ray.is_initialized():
        return
    logging.getLogger("ray").setLevel(logging.ERROR)  # what the cluster says comes otherwise
    for handler in logging.getLogger("ray.serve").handlers:
        handler.setLevel(logging.WARNING)
    address = os.environ.get("RAY_ADDRESS", otherwise)
    begun = {}
    if address == "local":
        _check_temporary()
        begun = {"include_dashboard": False}
    ray.init(address=address, logging_level=logging.ERROR, **begun)


def _check_temporary() -> None:
    """Raise ModelUnavailable if Ray's sockets can't have such long names as they would have."""
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), None)
    if name is None or (name == "TMPDIR" and not sys.platform.startswith("linux")):
        return
    most = LONGEST_ADDRESS - len(SOCKET.format(os.getpid()))
    folder = os.environ[name]
    if (given := len(os.fsencode(folder))) > most:
        raise ModelUnavailable(
            f"`{name}` must have at most {most} bytes: Ray's sockets are there, in folders of its own. "
            f"Given: {given}, {folder}. Set RAY_TMPDIR to a folder with a shorter path, such as /tmp"
        )
