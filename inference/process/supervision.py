"""The engine's process as the one that spawned it sees it: started, watched, and started again."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import inference
from inference.config import EngineConfig, Found, again
from inference.core import Life
from inference.environment import child_environment, prepare_environment
from inference.errors import ModelUnavailable
from inference.ipc.control import Control, log_levels, relay, socket_pair
from inference.ipc.ended import Ended, Seen, describe, ends_within
from inference.ipc.framing import FrameFault, pack
from inference.ipc.messages import (
    FROM_CHILD,
    Configuration,
    FromChild,
    Kept,
    Logged,
    Progress,
    Pulse,
    Ready,
    Stop,
    Unavailable,
)
from inference.ipc.output import LineReader
from inference.ipc.watchdog import LAST_WORDS, LOOK_SECONDS, Watchdog, step_limit
from inference.process.address import Address
from inference.types import ModelInfo

LOG = logging.getLogger(__name__)

PROGRAM = ("-m", "inference.process")
BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # before it is started again; the last one stays
STEADY_SECONDS = 60.0  # of service, after which a death is the first one again
LOAD_DEATHS = 3  # in a row, after which a model that was never loaded counts as unavailable
STOP_SECONDS = 10.0  # for the engine to end by itself
CLOSED_SECONDS = 5.0  # for a process to end that has closed its line
KILLED_SECONDS = 5.0  # for one that was killed; who hasn't ended then is held by the kernel
LAST_WORDS_SECONDS = 1.0  # for one that hangs to say where, before it is killed


class EngineProcess:
    """Spawns an engine and keeps one running; has an address from the beginning, the same for all of them.

    The log records of the engine's process, and whatever it writes to its outputs, come out of this
    process's logging. A thread watches it, from which `watch`'s callback is called.
    """

    def __init__(self, config: EngineConfig, *, program: Sequence[str] = PROGRAM) -> None:
        self.found: Found | None = None  # by the first engine, on the hub
        self._config = config
        self._program = program  # arguments of Python
        self._socket = Address()
        self._watcher: Callable[[Life], None] | None = None
        self._changed = threading.Condition()  # guards the next three
        self._lines: list[str] = []  # of progress
        self._model: ModelInfo | None = None  # of the process that runs
        self._failure: str | None = None  # set once nothing is started any more
        self.loaded = False  # once, at least
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Control | None = None  # to the process that runs
        self._left: list[subprocess.Popen[bytes]] = []  # processes that can't be ended
        self._thread = threading.Thread(target=self._supervise, name="engine-supervisor", daemon=True)

    @property
    def address(self) -> str:
        """Return the path of the socket for `RemoteCore`; it listens while no engine runs, too."""
        return self._socket.path

    @property
    def pid(self) -> int | None:
        """Return the id of the process that runs or ran last; None before the first."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether an engine runs that has loaded its model."""
        return self._model is not None

    @property
    def held(self) -> bool:
        """Return whether the process that ran last can't be ended, and so holds its sockets open."""
        return self._process in self._left

    @property
    def failure(self) -> str | None:
        """Return why no engine is started any more; None while one is."""
        return self._failure

    def watch(self, changed: Callable[[Life], None]) -> None:
        """Have every change told, from the supervisor's thread; called before `start`."""
        self._watcher = changed

    def start(self) -> None:
        """Spawn the engine; returns at once."""
        self._thread.start()

    def wait(self, progress: Callable[[str], None]) -> ModelInfo:
        """Wait until the first engine is ready; raise ModelUnavailable."""
        told = 0
        while True:
            with self._changed:
                while not (len(self._lines) > told or self._model or self._failure):
                    self._changed.wait()
                lines, model, failure = self._lines[told:], self._model, self._failure
            for line in lines:
                progress(line)
            told += len(lines)
            if failure is not None:
                raise ModelUnavailable(failure)
            if model is not None:
                return model

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask the engine to end, wait so long, then kill it; remove its directory. Idempotent."""
        self._stopping.set()
        process, line = self._process, self._line
        if line is not None:
            line.send(Stop())
        if process is not None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                LOG.warning("The engine does not end within %g seconds and is killed", seconds)
                process.kill()
                if not ends_within(process, KILLED_SECONDS):
                    self._leave_behind(process)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    # --- the supervisor's thread ----------------------------------------------------------------

    def _supervise(self) -> None:
        """Keep one engine running; the thread must outlive them, as the kernel ends them with it."""
        deaths = restarts = 0  # the second without a token between
        while not self._stopping.is_set():
            ended = self._run_one()
            if self._stopping.is_set():
                break
            steady = ended.served_seconds is not None and ended.served_seconds >= STEADY_SECONDS
            deaths = 1 if steady else deaths + 1
            failure = self._final(ended, deaths, 0 if ended.served else restarts)
            if failure is not None:
                self._give_up(failure)
                return
            restarts = 1 if ended.served else restarts + 1
            self._tell(Life.DOWN)
            seconds = BACK_OFF_SECONDS[min(deaths, len(BACK_OFF_SECONDS)) - 1]
            LOG.error("The engine ended (%s); it is started again in %g s", describe(ended), seconds)
            self._stopping.wait(seconds)
        self._tell(Life.GONE)

    def _final(self, ended: Ended, deaths: int, restarts: int) -> str | None:
        """Return why no engine is to be started again; None where a model that was served may come back."""
        if self.loaded:
            most = self._config.max_restarts
            if most == 0 or restarts < most:
                return None
            again = f"started again {restarts} times, which `max_engine_restarts` sets, it served no token"
            return f"The engine is given up: {again}, and ended by {describe(ended)}"
        if ended.unavailable is not None:
            return ended.unavailable
        if deaths < LOAD_DEATHS:
            return None
        return f"The engine's process ended {deaths} times while it loaded the model: {describe(ended)}"

    def _run_one(self) -> Ended:
        try:
            process, line = self._begin()
        except (OSError, UnicodeError) as error:  # no memory, no descriptors; text that can't be sent
            return Ended(None, None, f"The engine's process can't be started: {error}")
        self._process, self._line = process, line
        if self._stopping.is_set():  # `stop` may not have seen it
            line.send(Stop())
        seen = self._listen(process, line)
        self._line = None
        line.close()
        hung = seen.hung if self._reap(process) else f"{seen.hung or 'it closed its line'}, and has not ended"
        with self._changed:
            self._model = None
        return Ended(process.returncode, seen.served_seconds, seen.unavailable, hung, seen.served)

    def _reap(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the end of a process, and kill it for that; return false if it can't be ended."""
        if process not in self._left and not ends_within(process, CLOSED_SECONDS):
            process.kill()
            if not ends_within(process, KILLED_SECONDS):
                self._leave_behind(process)
        return process not in self._left

    def _leave_behind(self, process: subprocess.Popen[bytes]) -> None:
        """Wait no longer for a process that not even SIGKILL ends: the kernel holds it, and its memory."""
        self._left.append(process)
        told = "The engine was killed and has not ended: a disk or driver holds process %d; it is left behind"
        LOG.critical(told, process.pid)

    def _begin(self) -> tuple[subprocess.Popen[bytes], Control]:
        """Start a process and tell it what to do; raise OSError, or UnicodeError for broken text."""
        line, theirs = socket_pair()
        try:
            with theirs:
                line.send(Configuration(self._config, os.getpid(), self._socket.path, log_levels()))
                return self._spawn(theirs.fileno()), line
        except (OSError, UnicodeError):
            line.close()
            raise

    def _spawn(self, line: int) -> subprocess.Popen[bytes]:
        listening = self._socket.listening.fileno()
        return subprocess.Popen(
            # Without the working directory among the places where modules are found
            [sys.executable, "-P", *self._program, str(line), str(listening)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(line, listening),
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the server's to act on
        )

    def _listen(self, process: subprocess.Popen[bytes], line: Control) -> Seen:
        """Take in what the engine says, until it closes its line: by its death, however it comes."""
        assert process.stdout is not None
        seen = Seen(Watchdog(time.monotonic(), step_limit(self._config.step_timeout, 0.0)))
        with selectors.DefaultSelector() as selector, process.stdout:
            output = LineReader(process.stdout.fileno())
            selector.register(line.socket, selectors.EVENT_READ)
            selector.register(output.descriptor, selectors.EVENT_READ)
            while True:
                seconds = min(seen.watchdog.look_seconds, output.look_seconds or LOOK_SECONDS)
                ready = {key.fd for key, _ in selector.select(seconds)}
                if output.open and not output.relay():
                    selector.unregister(output.descriptor)
                closed = line.socket.fileno() in ready and not self._take_all(line, seen)
                if closed or process in self._left:  # which will never close its line
                    break
                seen.hung = seen.watchdog.look(time.monotonic())
                if seen.hung is not None:
                    self._end_hung(process, seen.hung)
                    break
            output.relay()
        return seen

    def _end_hung(self, process: subprocess.Popen[bytes], reason: str) -> None:
        """Kill an engine that hangs, after it has had a moment to write where; raises nothing."""
        LOG.critical("The engine hangs and is killed: %s", reason)
        if LAST_WORDS is not None:
            process.send_signal(LAST_WORDS)
            self._stopping.wait(LAST_WORDS_SECONDS)
        process.kill()

    def _take_all(self, line: Control, seen: Seen) -> bool:
        try:
            messages = line.read(FROM_CHILD)
        except FrameFault as fault:
            LOG.error("what the engine's process says can't be read: %s", fault)
            return False
        for message in messages or ():
            self._take(message, seen)
        return messages is not None

    def _take(self, message: FromChild, seen: Seen) -> None:
        if isinstance(message, Logged):
            relay(message)
        elif isinstance(message, Pulse):
            seen.watchdog.hear(message.step)
            seen.served = message.served
        elif isinstance(message, Progress):
            with self._changed:
                self._lines.append(message.line)
                self._changed.notify_all()
        elif isinstance(message, Ready):
            seen.ready = time.monotonic()
            seen.watchdog.ready = True
            seen.watchdog.limit = step_limit(self._config.step_timeout, message.model.step_seconds)
            if self.loaded:
                LOG.warning("The engine runs again")
            self.loaded = True
            self.found = message.model.found
            self._config = again(self._config, self.found)
            with self._changed:
                self._model = message.model
                self._changed.notify_all()
            self._tell(Life.UP)
        elif isinstance(message, Kept):
            model = replace(self._config.model, kept_adapters=message.directories)
            self._config = replace(self._config, model=model)
        elif isinstance(message, Unavailable):
            seen.unavailable = message.message

    def _give_up(self, failure: str) -> None:
        """Tell everyone who waits that there will be no engine."""
        if self.loaded:  # else whoever waits for it tells why
            LOG.critical("%s", failure)
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        self._refuse(failure)
        self._socket.close()
        self._tell(Life.GONE)

    def _refuse(self, failure: str) -> None:
        """Answer those whom no engine will take in; they can then read why, and that nobody listens."""
        listening = self._socket.listening
        listening.setblocking(False)
        while True:
            try:
                waiting, _ = listening.accept()
            except BlockingIOError:
                return
            with waiting:
                waiting.setblocking(False)
                try:
                    waiting.send(pack(Unavailable(failure)))
                except OSError:
                    LOG.debug("one of those that waited for the engine has gone")

    def _tell(self, life: Life) -> None:
        if self._watcher is not None:
            self._watcher(life)


def _environment() -> dict[str, str]:
    """Return the environment for the engine, in which it finds this very package."""
    environ = child_environment(inference)
    prepare_environment(environ)
    environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # what it writes is taken into the log, line by line
    return environ
