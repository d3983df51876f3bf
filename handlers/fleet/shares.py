"""What each replica gets of the cluster's machines."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from handlers.settings import Settings

logger = logging.getLogger("parley")


@dataclass(frozen=True, slots=True)
class Share:
    """What Ray keeps free for a replica; it counts, and limits nothing."""

    threads: int  # that compute on a CPU
    cpus: int  # 0: it shares a core
    gpus: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.gpus} GPU" if self.gpus else f"{self.threads} threads on {self.cpus or 'shared'} cores"


def share(settings: Settings, nodes: list[dict[str, float]]) -> Share:
    """Return what a replica gets of machines with these resources: a GPU, or the same part of all cores.

    `--compute-threads`, where it is given, says how many cores. A replica is on one machine, so that it gets
    no more than the largest one has; where there are more replicas than cores, they share these.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if settings.device == "cuda" or (settings.device == "auto" and gpus):
        if gpus < settings.replicas:
            logger.warning(
                "%d replicas need a GPU each, and the cluster has %d: some wait for more",
                settings.replicas,
                gpus,
            )
        return Share(threads=1, cpus=1, gpus=1)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    part = settings.compute_threads or sum(cores) // settings.replicas
    cpus = min(part, max(cores, default=0))
    return Share(threads=settings.compute_threads or max(cpus, 1), cpus=cpus)


def of_a_replica(settings: Settings, given: Share) -> Settings:
    """Return the settings of one replica, which computes on its own cores alone."""
    if given.gpus:
        return replace(settings, device="cuda")
    return replace(settings, device="cpu", compute_threads=given.threads)
