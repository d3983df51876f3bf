"""Rows of numbers by name, in memory that several processes share.

A table whose names may be any number in time, and of which few are in use at once. A digest picks a set of
rows, and a name has any of that set; one that says nothing which a new row wouldn't say is given to another.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from math import inf

from inference.frontend.shared import SharedMemory

WAYS = 16  # rows of a set
NAME_BYTES = 16  # of a digest
NUMBER_BYTES = 8
SECRET_BYTES = 64  # under which digests are made, so that nobody finds names of the same set
NOBODY = bytes(NAME_BYTES)

Row = memoryview  # of float64


class SharedRows:
    """The table, as each of the processes has it."""

    def __init__(self, memory: SharedMemory, width: int, loss: Callable[[Row[float]], float]) -> None:
        """`memory` is what `create` made, with so many numbers in a row.

        `loss`: what it costs to forget a row; 0: nothing, infinite: it mustn't be.
        """
        view = memory.view()
        self._memory = memory
        self._loss = loss
        self._width = width
        self._sets = (len(view) - SECRET_BYTES) // (WAYS * (NAME_BYTES + width * NUMBER_BYTES))
        numbers = SECRET_BYTES + self._sets * WAYS * NAME_BYTES
        self._secret = bytes(view[:SECRET_BYTES])
        self._names = view[SECRET_BYTES:numbers]
        self._numbers = view[numbers:].cast("d")

    @classmethod
    def create(cls, rows: int, width: int) -> SharedMemory:
        """Return memory for so many rows or a few more; what isn't used takes none of the machine's."""
        sets = -(-rows // WAYS)
        memory = SharedMemory.create(SECRET_BYTES + sets * WAYS * (NAME_BYTES + width * NUMBER_BYTES))
        memory.view()[:SECRET_BYTES] = secrets.token_bytes(SECRET_BYTES)
        return memory

    @contextmanager
    def row(self, name: str) -> Iterator[Row[float] | None]:
        """Have the row of a name, zeros at first, to oneself; None if its whole set mustn't be forgotten.

        A process that dies meanwhile leaves it as it is.
        """
        with self._memory.locked():
            yield self._find(name)

    def clear(self, column: int) -> None:
        """Set one number of all rows to zero."""
        with self._memory.locked():
            self._numbers[column :: self._width] = array("d", bytes(NUMBER_BYTES * self._sets * WAYS))

    def _find(self, name: str) -> Row[float] | None:
        digest = blake2b(name.encode(), key=self._secret, digest_size=NAME_BYTES).digest()
        first = int.from_bytes(digest[:8], "little") % self._sets * WAYS
        known = [self._name(at) for at in range(first, first + WAYS)]
        if digest in known:
            return self._row(first + known.index(digest))
        losses = [
            -1.0 if each == NOBODY else self._loss(self._row(first + at)) for at, each in enumerate(known)
        ]
        least = min(losses)
        return None if least == inf else self._give(first + losses.index(least), digest)

    def _give(self, at: int, digest: bytes) -> Row[float]:
        row = self._row(at)
        place = slice(at * NAME_BYTES, (at + 1) * NAME_BYTES)
        self._names[place] = NOBODY  # a process that dies here leaves nobody with another's numbers
        row[:] = array("d", bytes(NUMBER_BYTES * self._width))
        self._names[place] = digest
        return row

    def _name(self, at: int) -> bytes:
        return bytes(self._names[at * NAME_BYTES : (at + 1) * NAME_BYTES])

    def _row(self, at: int) -> Row[float]:
        return self._numbers[at * self._width : (at + 1) * self._width]
