"""What crosses between the first shard and another while that is started, over a line of their own.

`Task` there; `Present`, `Logged` and `Unavailable` back. Whoever comes from another machine says `Join`
first, and may hear that it is `Unavailable`.
"""

from __future__ import annotations

import msgspec

from inference.config import EngineConfig
from inference.process.messages import Logged, Message, Unavailable


class Join(Message, frozen=True, tag=40):
    """A process on another machine is there to be a shard."""

    version: str  # of Parley


class Task(Message, frozen=True, tag=41):
    """Which shard to be, and of what."""

    engine: EngineConfig
    rank: int
    count: int
    cores: list[int] | None  # that it stays on; None: any
    threads: int | None  # that compute; None: as many as there are cores
    memory: int | None  # a descriptor of the memory that all share; None: they are on several machines,
    store: tuple[str, int] | None  # and meet at a host and port
    log_levels: dict[str, int]  # by logger, "" for the root


class Present(Message, frozen=True, tag=42):
    """The model's files were found; it comes to meet the others."""


FromShard = Present | Logged | Unavailable
FROM_SHARD: msgspec.msgpack.Decoder[FromShard] = msgspec.msgpack.Decoder(FromShard)
FROM_JOINING: msgspec.msgpack.Decoder[Join] = msgspec.msgpack.Decoder(Join)
FROM_FIRST: msgspec.msgpack.Decoder[Task | Unavailable] = msgspec.msgpack.Decoder(Task | Unavailable)
