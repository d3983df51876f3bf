"""Large bodies are read and understood on a thread, one after another: the event loop goes on meanwhile.

So are large answers made.

The thread shares the interpreter with the loop, which gets it back every few milliseconds: what is slow is
slow for whoever sent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from inference.text.lanes import Lane

LARGE_BYTES = 65_536
MANY_VALUES = 2_048  # of an answer: told in some milliseconds
MANY_OBJECTS = 24  # a schema of 900 takes 100 ms to find the meaning of; of thousands with fewer none took 7
MANY_COMMAS = 1_000  # there are about as many values as commas, and each takes some microseconds
ESCAPED = b"\\u007"  # the beginning of an escaped brace
# A member that holds a grammar, which takes some milliseconds to read, or one of whose letters is escaped
GRAMMARS = (b'"definition"', b"\\u006", ESCAPED)

Result = TypeVar("Result")


class Aside(Protocol):
    """Runs what is made of a request's body where that holds up nobody."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns; raise what it raises, or Overloaded."""

    async def on_thread(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, which can take long even of a small body: never done here."""

    def part(self, count: int) -> Aside:
        """Return the same for one of `count` parts of the body, which are worked on by themselves."""


class AtOnce:
    """Does the work of a small body here: it takes less time than the way to a thread and back."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns."""
        return work()

    async def on_thread(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns on any thread."""
        return await asyncio.to_thread(work)

    def part(self, count: int) -> Aside:
        """Return itself."""
        return self


AT_ONCE = AtOnce()


@dataclass(frozen=True, slots=True)
class OnThread:
    """Takes the work of one large body to the thread."""

    lane: Lane
    size: int  # bytes

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns; raise Overloaded if too much waits for the thread already."""
        return await self.lane.run(work, self.size)

    async def on_thread(self, work: Callable[[], Result]) -> Result:
        """Do the same."""
        return await self(work)

    def part(self, count: int) -> Aside:
        """Return the same for a share of the size."""
        return OnThread(self.lane, self.size // count)


async def made(work: Callable[[], Result], values: int) -> Result:
    """Return what `work` makes of an answer with so many values, on a thread if they are many.

    Nobody is refused here: what is told has been computed.
    """
    return work() if values <= MANY_VALUES else await asyncio.to_thread(work)


def is_large(raw: bytes) -> bool:
    """Return whether a body is long, has many values or objects, also in texts, or grammars of tools."""
    return (
        len(raw) > LARGE_BYTES
        or raw.count(b"{") + raw.count(ESCAPED) > MANY_OBJECTS
        or (len(raw) > MANY_COMMAS and raw.count(b",") > MANY_COMMAS)
        or any(each in raw for each in GRAMMARS)
    )
