"""The server's end of the process in which grammars are compiled first."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

import inference
from inference.environment import bare_environment
from inference.errors import GenerationFailed
from inference.grammar.fault import GrammarFault
from inference.grammar.late import LateGrammar, SharedVocabulary
from inference.grammar.limits import GrammarLimits, too_slow
from inference.grammar.line import ANSWERS, BEGUN, Answer, Made, Panicked, Task, receive, send
from inference.grammar.tokens import GrammarSource, GrammarTokens
from inference.types import Grammar

START_SECONDS = 60.0  # that the process may take until it forks, on a machine with much other work
END_SECONDS = 5.0

log = logging.getLogger(__name__)


class ForkedMaker:
    """Has grammars compiled in processes that are there for it, and compiles none of them here.

    Each process has one grammar at a time, so there are as many as threads that call. What comes back is
    compiled again where masks are computed. The process that forks them is started by the first grammar, and
    again when it has ended.
    """

    def __init__(self, tokens: GrammarTokens, module: str = "inference.grammar.forking") -> None:
        self.tokens = tokens
        self._module = module
        self._vocabulary = SharedVocabulary(tokens)  # made ready by nobody unless masks are computed here
        self._idle: list[socket.socket] = []  # lines to processes that have nothing to do
        self._lock = threading.Lock()  # for the next two
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def make(self, grammar: Grammar, limits: GrammarLimits, begun: Callable[[], None]) -> LateGrammar:
        """Return a grammar that could be compiled.

        Raises GrammarFault, also if its process ended by it, and GenerationFailed if native code panics, or
        no process is to be had.
        """
        said = self._ask(Task(grammar.kind, grammar.source, limits), begun)
        if isinstance(said, Made):
            return LateGrammar(self._vocabulary, GrammarSource(said.lark, limits, said.seconds))
        if isinstance(said, Panicked):
            raise GenerationFailed(f"The grammar's compiler failed: {said.kind}")
        raise GrammarFault(said.reason, said.pointer, said.label)

    def close(self) -> None:
        """End the processes; those that still compile end by themselves."""
        while self._idle:
            self._idle.pop().close()
        with self._lock:
            self._end()

    def _ask(self, task: Task, begun: Callable[[], None]) -> Answer:
        line = self._begin(task)
        began = time.monotonic()
        begun()
        line.settimeout(task.limits.seconds + END_SECONDS)
        said = b""
        with suppress(OSError):  # a timeout is one
            said = receive(line)
        if said:
            self._idle.append(line)
            return ANSWERS.decode(said)
        line.close()
        if time.monotonic() - began >= task.limits.seconds:
            raise too_slow(task.limits)
        log.warning("the process that compiled a grammar has ended by it; its request is refused")
        raise GrammarFault("its compiler failed, or took too much memory. Send a simpler one")

    def _begin(self, task: Task) -> socket.socket:
        """Return the line to a process that works on a task; raise GenerationFailed."""
        for line in self._lines():
            line.settimeout(START_SECONDS)
            with suppress(OSError):  # it has ended, or says nothing
                send(line, task)
                if line.recv(len(BEGUN)):
                    return line
            line.close()
        raise GenerationFailed("The process that compiles grammars can't be started, or doesn't answer")

    def _lines(self) -> Iterator[socket.socket]:
        """Yield lines to processes that may have ended since they were last heard of, then to new ones."""
        with suppress(IndexError):  # several threads take of them
            while True:
                yield self._idle.pop()
        for again in (False, True):
            if again:  # the process that forks may have ended as well
                self.close()
            line, theirs = socket.socketpair()
            with theirs, suppress(OSError):
                socket.send_fds(self._started(), [BEGUN], [theirs.fileno()])
            yield line

    def _started(self) -> socket.socket:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            assert self._control is not None
            return self._control

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # native code that panics writes what strangers wrote
                pass_fds=[theirs.fileno()],
                env=bare_environment(inference),
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as given:
            given.write(msgspec.msgpack.encode(self.tokens))

    def _end(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()  # its forks go on
            process.wait()
