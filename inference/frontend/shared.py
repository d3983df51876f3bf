"""Memory that several processes share by inheriting it: it has no name, and nothing is left to clean up."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


class SharedMemory:
    """Zeroed at first; lives as long as any process has it."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map what `create` made, by its descriptor, in a process that inherited it; `size` is in bytes."""
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Return memory of `size` bytes; children that are to share it are given `descriptor`."""
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    @classmethod
    def inherited(cls, descriptor: int) -> SharedMemory:
        """Return all that `create` made, in a process that inherited it."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def view(self) -> memoryview[int]:
        """Return the bytes, to write to and to `cast`."""
        return memoryview(self._map)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes out; the system ends the lock of a process that dies.

        A lock of fcntl's, as flock's would be shared by all who inherited the descriptor.
        """
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("parley", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
