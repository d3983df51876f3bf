"""The connection of this process to a cluster."""

from __future__ import annotations

import logging
import os

import ray


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
    this machine. Raises ConnectionError if there is none at RAY_ADDRESS.
    """
    if ray.is_initialized():
        return
    logging.getLogger("ray").setLevel(logging.ERROR)  # what the cluster says comes otherwise
    for handler in logging.getLogger("ray.serve").handlers:
        handler.setLevel(logging.WARNING)
    address = os.environ.get("RAY_ADDRESS", otherwise)
    begun = {"include_dashboard": False} if address == "local" else {}
    ray.init(address=address, logging_level=logging.ERROR, **begun)
