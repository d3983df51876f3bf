"""A shard that isn't the first: it loads its share of the model, and computes what it is told."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import NoReturn

import torch

from inference import last_resorts
from inference.cpu.prefault import Prefault
from inference.errors import ModelUnavailable
from inference.ipc.control import Control, send_logs
from inference.ipc.messages import Unavailable
from inference.kernels.native import Library
from inference.loading.source import Source, find_source
from inference.machine import release_memory, usable_cores
from inference.models.share import Share
from inference.shards.cores import of_its_own, stay_on
from inference.shards.group import Group, ShardLost
from inference.shards.leader import WITHOUT_LIBRARY
from inference.shards.local_group import LocalGroup, mapped
from inference.shards.meeting import Sizes, agree, hear, wait_for_all
from inference.shards.messages import FROM_FIRST, Dismissed, FromFirst, Own, Present, Task
from inference.shards.net_group import NetGroup
from inference.shards.runner import SharedRunner
from inference.shards.steps import Listener
from inference.shards.store import join_store

LOG = logging.getLogger(__name__)

DISMISSED, FAILED, UNAVAILABLE = 0, 1, 3  # exit codes
_WORD_SECONDS = 2.0  # for the first shard, whose part of the group has gone, to say why


def follow(line: Control, own: Own | None = None) -> NoReturn:
    """Be the shard that the first one asks for over a line, and end this process when that ends.

    `own`: what is known of this machine, if it is another one than the first shard's.
    """
    words = line.receive(FROM_FIRST)
    task = next(words, None)
    if isinstance(task, Unavailable):
        raise SystemExit(f"parley shard: {task.message}")
    if not isinstance(task, Task):
        os._exit(FAILED if task is None else DISMISSED)
    if own is not None:
        task = own.task(task)
    send_logs(line, task.log_levels)
    last_resorts.install()
    leash = threading.Thread(target=_end_with, args=(words,), name="shard-leash", daemon=True)
    leash.start()
    code = _serve(line, task)
    if code == FAILED and own is not None:  # or the others are leaving, in order: then the first one says so
        leash.join(_WORD_SECONDS)
    os._exit(code)


def _end_with(words: Iterator[FromFirst]) -> NoReturn:
    """End this process as soon as the first shard's has: nothing else would, while it waits for a word."""
    os._exit(DISMISSED if isinstance(next(words, None), Dismissed) else FAILED)


def _serve(line: Control, task: Task) -> int:
    try:
        _compute(line, task)
    except ModelUnavailable as error:
        line.send(Unavailable(str(error)))
        return UNAVAILABLE
    except ShardLost:  # the first one knows, and says so
        pass
    except BaseException as error:  # torch raises anything
        LOG.exception("Shard %d has failed", task.rank)
        line.send(Unavailable(f"{type(error).__name__}: {error}"))
    return FAILED


def _compute(line: Control, task: Task) -> NoReturn:
    """Load a share and compute steps; raise ModelUnavailable, ShardLost."""
    stay_on(None if task.cores is None else set(task.cores))
    threads = of_its_own(task.threads or usable_cores(), task.engine)
    torch.set_num_threads(threads)
    source = find_source(task.engine, threads, LOG.debug)
    if source.library is None:
        raise ModelUnavailable(WITHOUT_LIBRARY.format(task.count))
    line.send(Present())
    group = _meet(line, task, source.library)
    agree(group, source.machine(threads))
    runner, sizes = _load(source, group)
    torch.set_num_threads(1)  # what torch computes between native calls is little
    prefault = Prefault(runner.arrays) if sizes.prefault else None
    listener = Listener(group, sizes.slots, sizes.pages)
    wait_for_all(group)
    while True:
        told = listener.receive()
        if told.pieces is not None:
            runner.run(told.pieces, tokens_only=told.tokens_only)
        elif prefault is not None:
            prefault.advance(told.number)


def _meet(line: Control, task: Task, library: Library) -> Group:
    share = Share(task.rank, task.count)
    if task.memory is not None:
        return LocalGroup(library, mapped(task.memory), share)
    assert task.store is not None, "shards meet there"
    inet = line.socket.family in (socket.AF_INET, socket.AF_INET6)
    address: str = line.socket.getsockname()[0] if inet else task.store[0]
    return NetGroup(join_store(task.store), share, address)


def _load(source: Source, group: Group) -> tuple[SharedRunner, Sizes]:
    (max_total_tokens,) = hear(group, 1).tolist()
    served, *_ = source.bring_up(max_total_tokens, LOG.debug, group)
    release_memory()
    sizes = Sizes.heard(group)
    runner = served.make_runner(sizes.blocks)
    assert isinstance(runner, SharedRunner), "a share has no other level"
    runner.serve()
    return runner, sizes
