"""What each replica gets of the cluster's machines."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from handlers.settings.table import Settings
from inference.telling import counted

ADDED_BYTES = 256  # x-request-id

logger = logging.getLogger("parley")


@dataclass(frozen=True, slots=True)
class Share:
    """What Ray keeps free for a replica; it counts, and limits nothing."""

    threads: int  # that compute on a CPU
    cpus: int  # 0: it shares a core
    gpus: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        if self.gpus:
            return f"{self.gpus} GPU"
        cpus = counted(self.cpus, "CPU") if self.cpus else "shared CPUs"
        return f"up to {counted(self.threads, 'thread')} on {cpus}"

    def beside(self, replicas: int, cpus: int) -> int:
        """Return how many replicas a machine with so many CPUs may hold, of which each has its part of it."""
        return replicas if not self.cpus else max(min(replicas, cpus // self.cpus), 1)


def share(settings: Settings, nodes: list[dict[str, float]]) -> Share:
    """Return what a replica gets of machines with these resources: a GPU, or as many cores as all can have.

    `--compute-threads`, where it is given, says how many threads there are; Ray keeps no more cores free than
    there are for all of the replicas, so that each finds its place. More replicas than cores share these.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if settings.device == "cuda" or (settings.device == "auto" and gpus):
        if gpus < settings.replicas:
            logger.warning(
                "%d replicas need a GPU each, and the cluster has %d: some wait for more",
                settings.replicas,
                gpus,
            )
        return Share(threads=1, cpus=1 if gpus else 0, gpus=1)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    fits = [each for each in range(1, max(cores, default=0) + 1) if places(cores, each) >= settings.replicas]
    most = max(fits, default=0)
    threads = settings.compute_threads or max(most, 1)
    return Share(threads=threads, cpus=min(threads, most))


def places(cores: list[int], each: int) -> int:
    """Return how many replicas of so many cores there is room for on machines with these."""
    return sum(count // each for count in cores)


def of_a_replica(settings: Settings, given: Share) -> Settings:
    """Return the settings of one replica, whose limits of headers leave room for what the gateway adds."""
    settings = replace(
        settings, header_limit=settings.header_limit + ADDED_BYTES, max_headers=settings.max_headers + 1
    )
    if given.gpus:
        return replace(settings, device="cuda")
    return replace(settings, device="cpu")


def threads_here(settings: Settings, given: Share, cpus: int, cores: int) -> int | None:
    """Return how many threads compute in a replica; None for a GPU's.

    Ray counts hardware threads, and not which of them the process may use: of the `cores` that it may keep
    busy a replica has what its share is of the machine's `cpus`. Threads that were asked for are given.
    """
    if given.gpus or settings.compute_threads is not None:
        return settings.compute_threads
    return max(min(given.threads, cores * given.cpus // max(cpus, 1)), 1)
