"""The process that compiles grammars, with a compiler that fails in every way; the source says in which."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import NoReturn

from inference.grammar import forking
from inference.grammar.build import build
from inference.grammar.compiled import LarkGrammar
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar

SAID = {"nonsense": b"\0\0\0\1\xc1", "endless": b"\xff" * 64}  # in place of an answer


class Panic(BaseException):
    """What native code raises."""


def refuse(*_: object, **__: object) -> NoReturn:
    """Have nothing to give."""
    raise BlockingIOError


def faulty(vocabulary: GrammarVocabulary, grammar: Grammar, limits: GrammarLimits) -> LarkGrammar:
    """Fail as the source says, or compile it."""
    if grammar.source == "segfault":
        ctypes.string_at(0)
    if grammar.source == "sleep":
        time.sleep(600)
    if grammar.source == "spin":
        while True:
            pass
    if grammar.source == "panic":
        raise Panic
    if grammar.source in SAID:
        vars(forking)["pack"] = lambda _: SAID[grammar.source]
    if grammar.source == "abort":
        os.abort()
    if grammar.source == "fault":
        raise KeyError("a client's word")
    if grammar.source == "time bomb":
        vars(forking)["bomb"] = True
    if grammar.source == "bomb" and "bomb" in vars(forking):
        os.abort()
    if grammar.source == "memory":
        bytearray(2 * forking.MEMORY_BYTES)
    if grammar.source == "environment":
        raise RuntimeError if "SECRET" in os.environ else KeyError
    source = 'start: "ok"' if grammar.source in (*SAID, "time bomb", "bomb") else grammar.source
    return build(vocabulary, Grammar(kind=grammar.kind, source=source), limits)


if __name__ == "__main__":
    vars(forking)["build"] = faulty
    if os.environ["HOME"] == "3 tasks":
        vars(forking)["MOST_TASKS"] = 3
    if os.environ["HOME"] == "no fork":
        os.fork = refuse
    if os.environ["HOME"] == "no thread":
        vars(threading)["Thread"] = refuse
    forking.main()
