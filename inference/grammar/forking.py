"""The process whose forks compile grammars first, each one at a time.

What compiles them is native code that reads what strangers wrote, and recurses into it. A grammar that ends
its fork, or takes more time or memory than it may, thus ends nothing else, and the next one has another fork
in milliseconds. No fork has any weights, a secret of the environment, or a socket of a client's.

`forked.py` is the other end. It sends the vocabulary over standard input, and each fork's line over the
socket that is the only argument; `line.py` says what goes over a line. A fork ends when its line is closed.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from inference.grammar.build import build
from inference.grammar.fault import GrammarFault
from inference.grammar.line import (
    BEGUN,
    TASKS,
    Answer,
    Made,
    Panicked,
    Refused,
    Task,
    receive,
    send,
)
from inference.grammar.stack import large_stacks
from inference.grammar.tokens import GrammarTokens
from inference.grammar.vocabulary import GrammarVocabulary
from inference.signals import outlive_endings
from inference.types import Grammar

NICENESS = 10  # texts that are being generated come first where processors are few
MEMORY_BYTES = 2 * 1024**3  # address space that a fork may take; the limits let most take a hundredth
MOST_TASKS = 256  # of one fork, as memory that was used isn't given back


def main() -> None:
    """Fork for each line until nobody can send any more."""
    outlive_endings()  # the server drains, and its end is ours
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    control = socket.socket(fileno=int(sys.argv[1]))
    tokens = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=GrammarTokens)
    vocabulary = GrammarVocabulary.of(tokens)
    _confine()
    gc.collect()
    gc.freeze()  # what is shared with forks is to stay so
    while fds := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=fds[0]) as line:
            _fork(line, control, vocabulary)


def answer(task: Task, vocabulary: GrammarVocabulary) -> Answer:
    """Return what becomes of a grammar."""
    try:
        made = build(vocabulary, Grammar(kind=task.kind, source=task.source), task.limits)
    except GrammarFault as fault:
        return Refused(fault.reason, fault.pointer, fault.label)
    except MemoryError:
        return Refused("compiling it takes too much memory. Send a simpler one", "", "")
    except BaseException as error:  # a panic of native code is no Exception
        return Panicked(type(error).__name__)
    return Made(made.source, made.seconds)


def _confine() -> None:
    if sys.platform == "linux":
        most = _mapped_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    os.nice(NICENESS)


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
        for _ in range(MOST_TASKS):
            _work(line, vocabulary)
    finally:
        os._exit(0)


def _work(line: socket.socket, vocabulary: GrammarVocabulary) -> None:
    message = receive(line)
    if not message:
        os._exit(0)
    task = TASKS.decode(message)
    line.sendall(BEGUN)
    signal.setitimer(signal.ITIMER_REAL, task.limits.seconds)  # which ends the process
    said = _on_a_large_stack(task, vocabulary)
    signal.setitimer(signal.ITIMER_REAL, 0)
    send(line, said)


def _on_a_large_stack(task: Task, vocabulary: GrammarVocabulary) -> Answer:
    answers: list[Answer] = []
    with large_stacks():
        thread = threading.Thread(target=lambda: answers.append(answer(task, vocabulary)))
        thread.start()
    thread.join()
    return answers[0]


if __name__ == "__main__":
    main()
