"""The process whose forks compile grammars first, each one at a time.

What compiles them is native code that reads what strangers wrote, and recurses into it. A grammar that ends
its fork, or takes more time or memory than it may, thus ends nothing else, and the next one has another fork
in milliseconds. No fork has any weights, a secret of the environment, or a socket of a client's.

`forked.py` is the other end. It sends the vocabulary over standard input, and each fork's line over the
socket that is the only argument; `line.py` says what goes over a line. A fork ends when its line is closed.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from inference.grammar.build import build
from inference.grammar.fault import GrammarFault
from inference.grammar.line import (
    BEGUN,
    TASKS,
    Answer,
    Failed,
    Made,
    Refused,
    Task,
    receive,
)
from inference.grammar.stack import large_stacks
from inference.grammar.threads import be_nice
from inference.grammar.vocabulary import GrammarVocabulary
from inference.ipc.framing import pack
from inference.ipc.grammar_tokens import GrammarTokens
from inference.outline import outline
from inference.signals import outlive_endings
from inference.types import Grammar

MEMORY_BYTES = 512 * 2**20  # address space that a fork may take; the limits let most take a tenth
MOST_TASKS = 256  # of one fork, as memory that was used isn't given back
KILLED_FIRST = "1000"  # where a machine or a container is short of memory, before the engine


def main() -> None:
    """Fork for each line until nobody can send any more."""
    outlive_endings()  # the server drains, and its end is ours
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as whoever started the server may have it ignored
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    faulthandler.enable()
    control = socket.socket(fileno=int(sys.argv[1]))
    tokens = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=GrammarTokens)
    vocabulary = GrammarVocabulary.of(tokens)
    confine()
    gc.collect()
    gc.freeze()  # what is shared with forks is to stay so
    while fds := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=fds[0]) as line:
            _fork(line, control, vocabulary)


def answer(task: Task, vocabulary: GrammarVocabulary) -> Answer:
    """Return what becomes of a grammar."""
    try:
        made = build(vocabulary, Grammar(kind=task.kind, source=task.source, lead=task.lead), task.limits)
    except GrammarFault as fault:
        return Refused(fault.reason, fault.pointer, fault.label)
    except MemoryError:
        return Refused("compiling it takes too much memory. Send a simpler one", "", "")
    except BaseException as error:  # a panic of native code is no Exception
        return Failed(type(error).__name__, outline(error))
    return Made(made.source, made.seconds)


def confine() -> None:
    """Leave this process and its forks little to do harm with."""
    if sys.platform == "linux":
        _limit(resource.RLIMIT_AS, _mapped_bytes() + MEMORY_BYTES)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        _limit(which, 0)
    with suppress(OSError):  # the server has told it, as its threads may not either
        be_nice(0)


def _limit(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _fork(line: socket.socket, control: socket.socket, vocabulary: GrammarVocabulary) -> None:
    try:
        process = os.fork()
    except OSError:  # too many processes, or too little memory: the line is closed without a word
        return
    if process:
        return
    try:
        control.close()
        with large_stacks():
            working = threading.Thread(target=_work, args=(line, vocabulary))
            working.start()
        working.join()
    finally:
        os._exit(0)


def _work(line: socket.socket, vocabulary: GrammarVocabulary) -> None:
    for _ in range(MOST_TASKS):
        task = receive(line, TASKS)
        if task is None:
            return
        line.sendall(BEGUN)
        signal.setitimer(signal.ITIMER_REAL, task.limits.seconds)  # which ends the process
        said = answer(task, vocabulary)
        signal.setitimer(signal.ITIMER_REAL, 0)
        line.sendall(pack(said))


if __name__ == "__main__":
    main()
