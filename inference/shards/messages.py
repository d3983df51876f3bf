"""What crosses between the first shard and another while that is started, over a line of their own.

`Task` there, and `Dismissed` in the end; `Present`, `Logged` and `Unavailable` back. Whoever comes from
another machine says `Join` first, and may hear that it is `Unavailable`.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from inference.config import EngineConfig
from inference.ipc.messages import Logged, Message, Unavailable


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


class Own(msgspec.Struct, frozen=True):
    """What one of another machine knows of that; None: as the first shard says."""

    model_id: str | None = None  # where the model is
    cache_dir: str | None = None  # the hub's cache
    threads: int | None = None  # that compute

    def task(self, task: Task) -> Task:
        """Return a task as it is to be done here."""
        heard = task.engine.model
        model = replace(
            heard, model_id=self.model_id or heard.model_id, cache_dir=self.cache_dir or heard.cache_dir
        )
        engine = replace(task.engine, model=model, threads=self.threads)
        return msgspec.structs.replace(task, engine=engine, threads=self.threads)


class Present(Message, frozen=True, tag=42):
    """The model's files were found; it comes to meet the others."""


class Dismissed(Message, frozen=True, tag=43):
    """The server ends in order; a line that ends without it broke."""


FromShard = Present | Logged | Unavailable
FROM_SHARD: msgspec.msgpack.Decoder[FromShard] = msgspec.msgpack.Decoder(FromShard)
FROM_JOINING: msgspec.msgpack.Decoder[Join] = msgspec.msgpack.Decoder(Join)
FromFirst = Task | Unavailable | Dismissed
FROM_FIRST: msgspec.msgpack.Decoder[FromFirst] = msgspec.msgpack.Decoder(FromFirst)
