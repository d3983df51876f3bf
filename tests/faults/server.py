"""A server in processes of its own, as its operator sees it: log, processes, files, memory, exit code."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from inference.ipc.watchdog import Patience
from tests.faults.launch import CLOCK
from tests.faults.traffic import HOST, get
from tests.ports import free_port
from tests.processes import children, command_line, read

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0  # for whatever must happen in the end
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Server:
    """`parley serve` on the embedded model."""

    def __init__(
        self,
        *flags: str,
        clock: bool = False,
        output: str | None = None,
        keep: Callable[[str], bool] = lambda line: True,
    ) -> None:
        """`clock` has the time of day jump; `output` is a file that the log goes to, in place of `lines`.

        `keep` says which lines of the log are kept.
        """
        self.port = free_port()
        self.lines: list[str] = []
        self._reading: Thread | None = None  # of the log
        command = [sys.executable, "-m", "tests.faults.launch", "--hostname", HOST]
        # Its own, so that what others on the machine leave isn't taken for what it left
        self._runtime = tempfile.mkdtemp(prefix="parley-faults-", dir="/tmp")
        weakref.finalize(self, shutil.rmtree, self._runtime, ignore_errors=True)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": self._runtime}
        if clock:
            environ[CLOCK] = "1"
        sink = subprocess.PIPE if output is None else os.open(output, os.O_WRONLY)
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *flags],
            cwd=ROOT,
            env=environ,
            stdout=sink,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if output is not None:
            os.close(sink)
        else:
            assert self.process.stdout is not None
            kept = filter(keep, self.process.stdout)
            self._reading = Thread(target=self.lines.extend, args=(kept,), daemon=True)
            self._reading.start()

    def told(self, pattern: str) -> int:
        """Return how many lines of the log hold a pattern."""
        return sum(re.search(pattern, line) is not None for line in self.lines)

    def sockets(self) -> set[Path]:
        """Return the engine's sockets that are there."""
        return set(Path(self._runtime).glob("**/*.sock"))

    def processes(self) -> dict[int, str]:
        """Return the server's processes and what each of them is."""
        found, todo = {self.process.pid: "server"}, [self.process.pid]
        while todo:
            for child in children(todo.pop()):
                todo.append(child)
                line = command_line(child)
                found[child] = (
                    "engine" if "faults.engine" in line else "worker" if "worker" in line else "other"
                )
        return found

    def of(self, kind: str) -> list[int]:
        """Return the processes of a kind: server, engine or worker."""
        return [process for process, each in self.processes().items() if each == kind]

    def engine(self) -> int:
        """Return the engine's process."""
        (engine,) = self.of("engine")
        return engine

    def descriptors(self) -> int:
        """Return how many files the process that serves holds open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_bytes(self) -> int:
        """Return the memory of the process that serves."""
        return int(read(f"/proc/{self.process.pid}/statm").split()[1]) * PAGE_BYTES

    def clients(self, process: int) -> set[int]:
        """Return the ports of the clients whose connections a process of the server holds."""
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ports = {f"socket:[{row[9]}]": row[2] for row in table if int(row[1][-4:], 16) == self.port}
        links = [_link(each) for each in Path(f"/proc/{process}/fd").iterdir()]
        return {int(ports[link][-4:], 16) for link in links if link in ports} - {0}

    async def metric(self, series: str) -> float:
        """Return the value of a series."""
        _, content, _ = await get(self.port, "/metrics")
        (found,) = [line for line in content.decode().splitlines() if line.startswith(f"{series} ")]
        return float(found.rpartition(" ")[2])

    async def status(self, path: str) -> int:
        """Return the status of a GET, 0 if nobody listens."""
        return (await get(self.port, path))[0]

    async def ready(self) -> None:
        """Wait until it takes requests."""
        await self.until(lambda: self._is(200, "/readyz"), "it takes requests")

    async def idle(self) -> None:
        """Wait until nothing runs or waits."""

        async def rests() -> bool:
            running, queued = [
                await self.metric(f"tgi_{name}") for name in ("batch_current_size", "queue_size")
            ]
            return (running, queued) == (0, 0)

        await self.until(rests, "nothing runs or waits")

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> float:
        """Wait for something; return the seconds that it took."""
        patience = Patience(began := time.monotonic())
        while not await true():
            if self.process.poll() is not None:
                raise AssertionError(f"the server has ended ({self.process.returncode}): {self._log()}")
            if patience.look(time.monotonic()) > PATIENCE_SECONDS:
                raise AssertionError(f"it didn't come about that {what}: {self._log()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def ended(self) -> int:
        """Wait for its end and return the exit code."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)

    async def close(self) -> None:
        """End it, if it hasn't ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._reading is not None:
            assert self.process.stdout is not None
            self._reading.join(PATIENCE_SECONDS)  # until the last process has closed its end
            self.process.stdout.close()

    async def _is(self, status: int, path: str) -> bool:
        return await self.status(path) == status

    def _log(self) -> str:
        return "".join([line for line in self.lines if "parley.access" not in line][-20:])


@asynccontextmanager
async def serving(*flags: str, **how: Any) -> AsyncIterator[Server]:
    """Start a server, wait until it is ready, and end it; `how` as `Server` takes it."""
    server = Server(*flags, **how)
    try:
        await server.ready()
        yield server
    finally:
        await server.close()


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # it was closed meanwhile
        return ""
