"""The first shard's side of the others: they are started, listened to, and ended."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
from torch.distributed import TCPStore

import inference
from inference.config import EngineConfig
from inference.environment import child_environment
from inference.errors import ModelUnavailable
from inference.ipc.control import Control, log_levels, relay, socket_pair
from inference.ipc.framing import FrameFault
from inference.ipc.messages import Logged, Unavailable
from inference.kernels.native import Library
from inference.models.share import Share
from inference.shards.cores import cores_of
from inference.shards.group import Group
from inference.shards.joining import Door
from inference.shards.local_group import LocalGroup, mapped, memory_bytes
from inference.shards.messages import FROM_SHARD, Dismissed, FromShard, Present, Task
from inference.shards.net_group import NetGroup
from inference.shards.store import open_store
from inference.telling import counted

LOG = logging.getLogger(__name__)

WITHOUT_LIBRARY = (
    "The model can't be spread over {} shards without the native kernels, which are switched off or can't be "
    "used here: see the log for why, or start without --num-shard"
)
PROGRAM = ("-m", "inference.process.shard")
_END_SECONDS = 5.0  # for a process to end by itself
_WORD_SECONDS = 2.0  # for a shard that has ended to have said why


class Shards:
    """The other shards of a model, whose first is this process."""

    def __init__(self, config: EngineConfig, threads: int, lost: Callable[[str], None]) -> None:
        """Start those of this machine, and wait for none; raise ModelUnavailable.

        `threads` are each one's; `lost` is called, from another thread, when one of them has ended.
        """
        self._config = config
        self._threads = threads
        self._lost = lost
        self._changed = threading.Condition()  # guards the next three
        self._present: set[int] = set()  # ranks
        self._failures: list[str] = []  # of those that have ended
        self._group: Group | None = None  # set by `meet`
        self._closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Control] = []
        self._readers: list[threading.Thread] = []
        self._local = config.shards - config.remote_shards
        self._next = self._local  # the next remote shard's rank
        self._memory: int | None = None
        self._store: TCPStore | None = None  # where those of several machines meet
        self._door: Door | None = None  # by which they come
        try:
            self._open()
            for rank in range(1, self._local):
                self._spawn(rank)
        except OSError as error:
            self.close()
            raise ModelUnavailable(f"The model's shards can't be started: {error}") from error

    def _open(self) -> None:
        config = self._config
        if not config.remote_shards:
            self._memory = os.memfd_create("parley-shards")
            os.ftruncate(self._memory, memory_bytes(config.shards))
            return
        self._store = open_store(config.shard_address)
        self._door = Door(config.shard_address, config.shard_port, config.remote_shards, self._enter)

    def meet(self, library: Library | None, progress: Callable[[str], None]) -> Group:
        """Wait until all have found the model's files, and meet them; raise ModelUnavailable, ShardLost."""
        config = self._config
        if library is None:
            raise ModelUnavailable(WITHOUT_LIBRARY.format(config.shards))
        if config.remote_shards:
            place = f"--master-addr {config.shard_address} --master-port {config.shard_port}"
            awaited = counted(config.remote_shards, "shard")
            progress(f"Waiting for {awaited} of other machines: parley shard {place}")
        with self._changed:
            while not (self._failures or self._closing) and len(self._present) < config.shards - 1:
                self._changed.wait()
            if self._closing:
                raise ModelUnavailable("The server was stopped while the model's shards were started")
            if self._failures:
                raise ModelUnavailable(self._failures[0])
        group = self._make_group(library)
        with self._changed:
            self._group = group
            if self._failures:  # since it was looked at, with nobody to tell
                group.leave()
        return group

    def _make_group(self, library: Library) -> Group:
        share = Share(0, self._config.shards)
        if self._store is not None:
            return NetGroup(self._store, share, self._config.shard_address)
        assert self._memory is not None, "they are on one machine, or on several"
        return LocalGroup(library, mapped(self._memory), share)

    def why(self) -> str | None:
        """Return why a shard was lost, if it says so within a moment."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._failures), _WORD_SECONDS)
            return self._failures[0] if self._failures else None

    def close(self) -> None:
        """End what was started; idempotent."""
        with self._changed:
            was, self._closing = self._closing, True
            in_order = not self._failures
            self._changed.notify_all()
        if self._door is not None:
            self._door.close()
        for line in self._lines:
            if in_order and not was:
                line.offer(Dismissed())
            with suppress(OSError):  # it has closed its end
                line.socket.shutdown(socket.SHUT_RDWR)
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join()
        for line in self._lines:
            line.close()
        if not was and self._memory is not None:
            os.close(self._memory)

    def _spawn(self, rank: int) -> None:
        line, theirs = socket_pair()
        try:
            with theirs:
                self._processes.append(self._start(theirs.fileno()))
        except OSError:
            line.close()
            raise
        cores = cores_of(rank, self._local)
        self._begin(rank, line, self._threads, None if cores is None else sorted(cores))

    def _start(self, line: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", *PROGRAM, str(line)],
            stdin=subprocess.DEVNULL,
            pass_fds=(line, *(() if self._memory is None else (self._memory,))),
            env=child_environment(inference),
            start_new_session=True,  # Ctrl-C is the server's to act on
        )

    def _enter(self, line: Control) -> None:
        """Take in a shard of another machine."""
        rank, self._next = self._next, self._next + 1
        self._begin(rank, line, None, None)

    def _begin(self, rank: int, line: Control, threads: int | None, cores: list[int] | None) -> None:
        self._lines.append(line)
        store = None if self._store is None else (self._config.shard_address, self._store.port)
        count = self._config.shards
        line.send(Task(self._config, rank, count, cores, threads, self._memory, store, log_levels()))
        reader = threading.Thread(target=self._read, args=(rank, line), name=f"shard-{rank}", daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, rank: int, line: Control) -> None:
        """Take in what a shard says, until it ends, or nothing more can be taken in."""
        failure = "it has ended"
        try:
            for message in line.receive(FROM_SHARD):
                if isinstance(message, Unavailable):
                    failure = message.message
                self._hear(rank, message)
        except FrameFault as fault:
            failure = f"what it says can't be read: {fault}"
        finally:
            self._note_end(rank, failure)

    def _hear(self, rank: int, message: FromShard) -> None:
        if isinstance(message, Logged):
            relay(msgspec.structs.replace(message, text=f"shard {rank}: {message.text}"))
        elif isinstance(message, Present):
            with self._changed:
                self._present.add(rank)
                self._changed.notify_all()

    def _note_end(self, rank: int, failure: str) -> None:
        with self._changed:
            if self._closing:
                return
            self._failures.append(f"Shard {rank} of the model was lost: {failure}")
            self._changed.notify_all()
            group = self._group
        LOG.critical("Shard %d of the model was lost, with which the others can't go on: %s", rank, failure)
        if group is not None:
            group.leave()
        self._lost(self._failures[0])
