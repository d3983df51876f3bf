"""A staff of API workers that do what a test says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from handlers.serving.staff import Staff
from handlers.serving.worker import Post
from handlers.settings.table import Settings
from inference.frontend.places import COUNT_BYTES, SharedPlaces
from inference.frontend.shared import SharedMemory

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 30
WORKER = """
import signal, socket, sys
from handlers.serving.worker import Post
line = socket.socket(fileno=int(sys.argv[1]))
post = Post.decode(line.makefile("rb").readline())
{deed}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
line.sendall(b"ready\\n")
while True:
    signal.pause()
"""


class Office:
    """A staff of two at work."""

    def __init__(self, timeout_seconds: float = 0.0) -> None:
        self.memory = SharedMemory.create(2 * COUNT_BYTES)
        self.places = SharedPlaces(self.memory, 0)
        self.staff = Staff(self.post, self.places.vacate, timeout_seconds)
        self.failures: list[str] = []
        self.working = asyncio.ensure_future(self.staff.work(2, self.failures.append))

    def post(self, number: int) -> Post:
        return Post(
            number=number,
            workers=2,
            engine="",
            listening=0,
            places=0,
            owners=0,
            accounts=0,
            board=0,
            settings=Settings(),
        )

    def processes(self) -> list[int]:
        return [worker.process.pid for _, worker in sorted(self.staff._workers.items())]

    async def close(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        await self.staff.dismiss(patience_seconds)
        await asyncio.wait_for(self.working, PATIENCE_SECONDS)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def complete(office: Office) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await office.staff.complete.wait()


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def heard(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in folder.glob("[01]")]
