"""Groups of shards that are threads of this process."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch.distributed import HashStore

from inference.kernels.native import Library, open_library
from inference.models.share import Share
from inference.shards.group import Group
from inference.shards.local_group import LocalGroup, memory_bytes
from inference.shards.net_group import NetGroup

Result = TypeVar("Result")
Work = Callable[[Group, Library], Result]


def together(count: int, work: Work[Result], kind: str = "local") -> list[Result]:
    """Return what each shard makes, with its group and its own threads; raise what one of them does."""
    memory, store = mmap.mmap(-1, memory_bytes(count)), HashStore()

    def one(rank: int) -> Result:
        library = open_library(threads=1)
        assert library is not None, "the extension is built"
        share = Share(rank, count)
        group = LocalGroup(library, memory, share) if kind == "local" else NetGroup(store, share, "127.0.0.1")
        try:
            return work(group, library)
        except BaseException:
            group.leave()  # or the others would wait for it
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
