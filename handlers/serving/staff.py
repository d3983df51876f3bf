"""The API workers as whoever started them sees them: hired, replaced when they die, dismissed in the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import handlers
from handlers.serving.worker import ALIVE, COMPLETE, FAILED, HURRY, READY, Post
from inference.environment import child_environment
from inference.ipc.ended import describe_status
from inference.ipc.watchdog import LOOK_SECONDS, Patience

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
FIRST_SECONDS = 15.0  # for the first worker to answer, before the others start
KILLED_SECONDS = 5.0  # for a process to end that was killed; who hasn't then is held by the kernel
GOOD_SECONDS = 60.0  # a worker that lived so long gets its successor without a longer pause

logger = logging.getLogger("parley")


class Worker:
    """A process that serves."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket, number: int) -> None:
        self.process = process
        self.ready = False
        self.failure = ""  # a reason that won't go away by starting another one
        self._silence: Patience | None = None  # since its last sign of life; None before the first
        self._number = number
        self._line = line
        self._writer: asyncio.StreamWriter | None = None  # of the line, while it is attended to
        self._left = asyncio.Event()  # it was killed and can't be ended

    @classmethod
    async def hire(cls, post: Post) -> Worker:
        """Start one and tell it what to do; raise OSError if the machine has no room for it."""
        mine, its = socket.socketpair()
        try:
            with its:
                process = await asyncio.create_subprocess_exec(
                    *command(its.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(its.fileno(), *post.descriptors),
                    env=child_environment(handlers),
                    process_group=0,  # signals of the terminal are for us, who pass them on once
                )
        except OSError:
            mine.close()
            raise
        mine.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_sendall(mine, post.encode())
        except OSError:  # `attend` will see how it ended
            logger.debug("API worker %d has ended before it was told what to do", post.number)
        return cls(process, mine, post.number)

    async def attend(self, on_answering: Callable[[], None], on_ready: Callable[[], None]) -> int | None:
        """Listen to what it tells until it has ended; returns its exit code, None if it can't be ended."""
        listening = asyncio.create_task(self._listen(on_answering, on_ready))
        leaving = asyncio.create_task(self._left.wait())
        await _first_of(listening, leaving)
        return listening.result() if listening.done() and not listening.cancelled() else None

    async def _listen(self, on_answering: Callable[[], None], on_ready: Callable[[], None]) -> int:
        reader, writer = await asyncio.open_connection(sock=self._line)
        self._writer = writer
        try:
            async for told in reader:
                word, _, rest = told.strip().partition(b" ")
                if word == ALIVE:
                    self._silence = Patience(time.monotonic())
                    on_answering()
                if word == READY:
                    self.ready = True
                    on_answering()
                    on_ready()
                if word == FAILED:
                    self.failure = rest.decode()
        except ConnectionResetError:
            logger.debug("the line to API worker %d broke", self._number)
        finally:
            self._writer = None
            writer.close()
        code = await self.process.wait()
        if code > 0 and not self.ready and not self.failure:
            self.failure = f"API worker {self._number} can't start: its exit code is {code}"
        return code

    async def watch(self, timeout_seconds: float) -> None:
        """Kill it once it has given no sign of life for so long; 0: never."""
        if not timeout_seconds:
            return
        while self._hears(timeout_seconds):  # noqa: ASYNC110 - silence sets no event
            await asyncio.sleep(LOOK_SECONDS)
        told = "API worker %d has stood still for more than %g s, which `worker_timeout` sets, and is killed"
        logger.error(told, self._number, timeout_seconds)
        self.kill()

    async def gone(self) -> None:
        """Wait until it has ended, or is known not to."""
        await _first_of(asyncio.ensure_future(self.process.wait()), asyncio.ensure_future(self._left.wait()))

    def tell(self, word: bytes) -> None:
        """Tell it a word, if it listens."""
        if self._writer is not None:
            self._writer.write(word + b"\n")

    def kill(self) -> None:
        """End it at once; one that the kernel holds is left behind, and waited for no longer."""
        self.signal(signal.SIGKILL)
        asyncio.get_running_loop().call_later(KILLED_SECONDS, self._leave_behind)

    def _leave_behind(self) -> None:
        if self.process.returncode is None and not self._left.is_set():
            told = "API worker %d was killed and has not ended: a disk or driver holds it; it is left behind"
            logger.critical(told, self._number)
            self._left.set()

    def _hears(self, timeout_seconds: float) -> bool:
        return self._silence is None or self._silence.look(time.monotonic()) <= timeout_seconds

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(number)


class Staff:
    """Keeps a number of workers; what a dead one had taken of the places is given back."""

    def __init__(
        self, post: Callable[[int], Post], vacate: Callable[[int], None], timeout_seconds: float = 0.0
    ) -> None:
        """`post` is what a worker is told, by its number; `vacate` gives back what one had taken.

        One that stands still for longer than `timeout_seconds` is replaced; 0: never.
        """
        self.answering = asyncio.Event()  # one of them answers, be it that the model loads
        self.complete = asyncio.Event()  # each of them has been ready
        self._post = post
        self._vacate = vacate
        self._timeout_seconds = timeout_seconds
        self._workers: dict[int, Worker] = {}
        self._leaving = asyncio.Event()

    async def work(self, count: int, on_failed: Callable[[str], None]) -> None:
        """Keep so many at work until they are dismissed; `on_failed` is told why one can't serve at all.

        The others start once the first one answers: beside them it would take twice as long to, or longer.
        One that doesn't is waited for no longer than FIRST_SECONDS: it may stand still.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(0, count, on_failed))
            await _first_of(
                asyncio.ensure_future(self.answering.wait()),
                asyncio.ensure_future(self._leaving.wait()),
                asyncio.ensure_future(asyncio.sleep(FIRST_SECONDS)),
            )
            if not self.answering.is_set() and not self._leaving.is_set():
                told = "API worker 0 doesn't answer after %g s: the others start beside it"
                logger.warning(told, FIRST_SECONDS)
            for number in range(1, count):
                group.create_task(self._keep(number, count, on_failed))

    async def dismiss(self, patience_seconds: float) -> None:
        """Have all end what they do, and kill who hasn't ended then."""
        self._leaving.set()
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)
        ends = [worker.gone() for worker in self._workers.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*ends), patience_seconds)
        except TimeoutError:
            logger.error("API workers that haven't ended in %d s are killed", patience_seconds)
            self.kill()

    def hurry(self, patience_seconds: float) -> None:
        """Have all cut off what they do, and kill who hasn't ended then."""
        self.tell(HURRY)
        asyncio.get_running_loop().call_later(patience_seconds, self.kill)

    def kill(self) -> None:
        """End all at once."""
        for worker in self._workers.values():
            worker.kill()

    def tell(self, word: bytes) -> None:
        """Tell all a word."""
        for worker in self._workers.values():
            worker.tell(word)

    async def _keep(self, number: int, count: int, on_failed: Callable[[str], None]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._leaving.is_set():
            began = time.monotonic()
            end, failure = await self._employ(number, count)
            if failure and not self.complete.is_set():
                on_failed(failure)
                return
            if self._leaving.is_set():
                return
            pause = FIRST_PAUSE_SECONDS if time.monotonic() - began > GOOD_SECONDS else pause
            told = "API worker %d has ended (%s); another one starts in %g s"
            logger.error(told, number, failure or end, pause)
            await self._rest(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _employ(self, number: int, count: int) -> tuple[str, str]:
        """Start a worker and wait for its end; return how that came, and why another would do no better."""
        try:
            # The others answer while it loads; where there are none yet, somebody has to say 503
            worker = await Worker.hire(replace(self._post(number), late=self.complete.is_set()))
        except OSError as error:  # of the machine: there may be room later
            return f"it can't be started: {error}", ""
        self._workers[number] = worker
        if self._leaving.is_set():  # told while it was started
            worker.signal(signal.SIGTERM)
        watching = asyncio.create_task(self._watch(worker))
        try:
            code = await worker.attend(self.answering.set, lambda: self._note(count))
        finally:
            watching.cancel()
        self._vacate(number)
        return "it can't be ended" if code is None else describe_status(code), worker.failure

    async def _watch(self, worker: Worker) -> None:
        """Watch a worker until all are dismissed: then they have so long as they are given."""
        watching = asyncio.create_task(worker.watch(self._timeout_seconds))
        try:
            await self._leaving.wait()
        finally:
            watching.cancel()

    def _note(self, count: int) -> None:
        if sum(worker.ready for worker in self._workers.values()) == count:
            self.complete.set()
            self.tell(COMPLETE)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._leaving.wait(), seconds)
        except TimeoutError:
            return


async def _first_of(*ways: asyncio.Future[Any]) -> None:
    """Wait until one of them is done, and for the others no longer."""
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()


def command(line: int) -> list[str]:
    """Return what starts a worker, without the working directory among the places of modules."""
    return [sys.executable, "-P", "-m", "handlers.serving.worker", str(line)]
