"""The server's end of the processes in which grammars are compiled first."""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO

import msgspec

import inference
from inference.environment import bare_environment
from inference.errors import GenerationFailed
from inference.grammar.fault import GrammarFault, too_slow
from inference.grammar.late import LateGrammar, SharedVocabulary
from inference.grammar.line import ANSWERS, BEGUN, Answer, Failed, Made, Task, receive
from inference.grammar.threads import start_threads
from inference.grammar_limits import GrammarLimits
from inference.ipc.ended import describe_status
from inference.ipc.framing import FrameFault, pack
from inference.ipc.grammar_tokens import GrammarSource, GrammarTokens
from inference.ipc.output import LineReader
from inference.types import Grammar

START_SECONDS = 60.0  # that a process may take until it begins, on a machine with much other work
END_SECONDS = 5.0  # beyond its time that one is waited for, should its alarm not ring
NEARLY = 0.9  # of its time, after which it was that alarm: the clock here is read a moment later

log = logging.getLogger(__name__)


class ForkedMaker:
    """Has grammars compiled in processes that are there for it, and compiles none of them here.

    Each process has one grammar at a time, so there are as many as threads that call. What comes back is
    compiled again where masks are computed. The process that forks them is started by the first grammar, and
    again when it has ended.
    """

    def __init__(self, tokens: GrammarTokens, module: str = "inference.grammar.forking") -> None:
        self._tokens = tokens
        self._module = module
        self._vocabulary = SharedVocabulary(tokens)  # made ready by nobody unless masks are computed here
        # Those that call yield to others, and a process that starts as they are starts too late beside them
        self._starter = start_threads(1, "grammar-starter")
        self._lock = threading.Lock()  # for all that follows
        self._idle: list[socket.socket] = []  # lines to processes that have nothing to do
        self._forker: Forker | None = None
        self._closed = False

    def make(self, grammar: Grammar, limits: GrammarLimits, begun: Callable[[], None]) -> LateGrammar:
        """Return a grammar that could be compiled.

        Raises GrammarFault, also if its process ended by it, and GenerationFailed if native code panics, or
        no process is to be had.
        """
        said = self._ask(Task(grammar.kind, grammar.source, grammar.lead, limits), begun)
        if isinstance(said, Made):
            return LateGrammar(self._vocabulary, GrammarSource(said.lark, limits, said.seconds))
        if isinstance(said, Failed):
            log.error("a grammar's compiler failed:\n%s", said.outline)
            raise GenerationFailed(f"The grammar's compiler failed: {said.kind}")
        raise GrammarFault(said.reason, said.pointer, said.label)

    def close(self) -> None:
        """End the processes; one that still compiles ends when it has done so."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            forker, self._forker = self._forker, None
            self._starter.shutdown(wait=False)
        for line in idle:
            line.close()
        if forker is not None:
            forker.end()

    def _ask(self, task: Task, begun: Callable[[], None]) -> Answer:
        for line, fresh in self._lines():
            if not _begins(line, task):  # it had ended before
                line.close()
                continue
            began = time.monotonic()
            begun()
            said = _answer(line, task)
            if said is not None:
                self._keep(line)
                return said
            line.close()
            if time.monotonic() - began >= NEARLY * task.limits.seconds:
                raise too_slow(task.limits)
            if fresh:  # and so it was by this grammar, and by nothing that was compiled before
                log.warning("a process that compiled a grammar has ended by it; its request is refused")
                raise GrammarFault("its compiler failed, or took too much memory. Send a simpler one")
        raise GenerationFailed("The process that compiles grammars can't be started, or doesn't answer")

    def _lines(self) -> Iterator[tuple[socket.socket, bool]]:
        """Yield lines to processes that wait, two new ones at last, and whether each has had no task yet."""
        while (line := self._waiting()) is not None:
            yield line, False
        for _ in range(2):
            forker = self._started()
            yield forker.fork(), True
            forker.doubt()  # where that was in vain, the next one is another's

    def _waiting(self) -> socket.socket | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, line: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(line)
                return
        line.close()

    def _started(self) -> Forker:
        with self._lock:
            if self._closed:
                raise GenerationFailed("The server shuts down")
            if self._forker is None or not self._forker.lives:
                if self._forker is not None:
                    self._forker.end()
                self._forker = self._starter.submit(Forker, self._tokens, self._module).result()
            return self._forker


class Forker:
    """The process that forks the others."""

    def __init__(self, tokens: GrammarTokens, module: str) -> None:
        self._control, theirs = socket.socketpair()
        with theirs, _file() as given:
            given.write(msgspec.msgpack.encode(tokens))
            given.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=bare_environment(inference),
            )
        self._doubted = False
        threading.Thread(target=self._relay, name="grammar-stderr", daemon=True).start()

    @property
    def lives(self) -> bool:
        """Return whether it may fork."""
        return not self._doubted and self.process.poll() is None

    def fork(self) -> socket.socket:
        """Return the line to a new process, which is closed where there is none."""
        line, theirs = socket.socketpair()
        with theirs, suppress(OSError):
            socket.send_fds(self._control, [BEGUN], [theirs.fileno()])
        return line

    def doubt(self) -> None:
        """Have another one started when the next process is needed."""
        self._doubted = True

    def end(self) -> None:
        """End it; its forks go on until their lines are closed."""
        status = self.process.poll()
        if status is not None:
            log.warning("the process that forks for grammars has ended: %s", describe_status(status))
        self._control.close()
        self.process.kill()
        self.process.wait()

    def _relay(self) -> None:
        """Have the log tell what it and its forks write to standard error, but no words of clients."""
        assert self.process.stderr is not None
        with self.process.stderr as pipe:
            reader = LineReader(pipe.fileno(), logging.getLogger("stderr.grammar"))
            while reader.relay():
                select.select([pipe], [], [], reader.look_seconds)


def _file() -> IO[bytes]:
    """Return a file without a name; on Linux in memory, as there may be no place for any other."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("tokens"), "w+b")
    return tempfile.TemporaryFile()


def _begins(line: socket.socket, task: Task) -> bool:
    """Return whether a process takes a task."""
    line.settimeout(START_SECONDS)
    with suppress(OSError):  # a timeout is one
        line.sendall(pack(task))
        return bool(line.recv(len(BEGUN)))
    return False


def _answer(line: socket.socket, task: Task) -> Answer | None:
    """Return what a process says; None if it has ended, takes too long, or says what is no answer."""
    line.settimeout(task.limits.seconds + END_SECONDS)
    with suppress(OSError, FrameFault):
        return receive(line, ANSWERS)
    return None
