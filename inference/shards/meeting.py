"""How shards meet, and what they agree on before a model is loaded."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from inference.machine import Machine
from inference.sequences.state import Integers
from inference.shards.group import Group

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


def agree(group: Group, machine: Machine) -> Machine:
    """Return what all shards have together, as if it were one machine and the model in one piece.

    A machine with a quarter of the shards has to have room for a quarter of the model.
    """
    own = torch.tensor([machine.free_bytes, machine.threads, _place()])
    found = group.join(own).numpy()
    free, threads, places = found.T
    beside = (places[:, None] == places).sum(0)  # shards on each one's machine
    least = int((free * group.share.count // beside).min())
    return replace(machine, free_bytes=least, threads=int(threads.sum()))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the first shard has planned, for the others."""

    blocks: int  # of the cache
    slots: int
    pages: int  # of a slot
    prefault: bool

    def tell(self, group: Group) -> None:
        """Say it to the others; raise ShardLost."""
        group.tell(np.array([self.blocks, self.slots, self.pages, self.prefault], dtype=np.int64))

    @classmethod
    def heard(cls, group: Group) -> Sizes:
        """Wait for what the first shard says; raise ShardLost."""
        blocks, slots, pages, prefault = hear(group, 4).tolist()
        return cls(blocks, slots, pages, bool(prefault))


def hear(group: Group, count: int) -> Integers:
    """Return so many numbers that the first shard tells; raise ShardLost."""
    words = np.empty(count, dtype=np.int64)
    group.tell(words)
    return words


def wait_for_all(group: Group) -> None:
    """Return once all shards are here; raise ShardLost."""
    group.join(torch.zeros(1))


def _place() -> int:
    """Return a number that processes of one machine have in common."""
    try:
        name = _BOOT.read_text()
    except OSError:
        name = socket.gethostname()
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
