"""Compiles grammars beside the event loop and the engine, each once, and keeps those used last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from inference.errors import GenerationFailed, Overloaded
from inference.grammar.fault import GrammarFault, too_slow
from inference.grammar.maker import GrammarMaker
from inference.grammar.stack import large_stacks
from inference.grammar.threads import start_threads, yield_to_others
from inference.grammar_limits import GrammarLimits
from inference.types import CompiledGrammar, Grammar

CACHED_GRAMMARS = 64  # with `lexer_states`, 1 GB if each of them is made to explode
CACHED_BYTES = 2 * 2**20  # of their sources; compiled they take some 70 times as much
SMALL_CHARACTERS = 8_192  # of a source that compiles within some 100 ms
RETRY_SECONDS = 1.0

Key = tuple[str, str]
Kept = TypeVar("Kept")


@dataclass(slots=True)
class Job:
    """A compilation that has been asked for."""

    started: asyncio.Event
    work: Future[CompiledGrammar]  # the thread's
    result: asyncio.Future[CompiledGrammar]  # the same for the event loop
    waiting: int = 0  # requests


class GrammarCache(Generic[Kept]):
    """Grammars by their sources, bounded by number and size; those used last stay."""

    def __init__(self, grammars: int = CACHED_GRAMMARS, source_bytes: int = CACHED_BYTES) -> None:
        self._limit, self._bytes_limit = grammars, source_bytes
        self._grammars: OrderedDict[Key, Kept] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Kept | None:
        """Return a grammar, which thereby was used last."""
        found = self._grammars.get(key)
        if found is not None:
            self._grammars.move_to_end(key)
        return found

    def put(self, key: Key, grammar: Kept) -> None:
        """Keep a grammar; forget others for it."""
        if key in self._grammars:
            return
        self._grammars[key] = grammar
        self._bytes += len(key[1])
        while len(self._grammars) > self._limit or self._bytes > self._bytes_limit:
            forgotten, _ = self._grammars.popitem(last=False)
            self._bytes -= len(forgotten[1])

    def __len__(self) -> int:
        return len(self._grammars)


class GrammarCompiler:
    """Makes grammars ready for use; belongs to one event loop, works on threads of its own."""

    def __init__(self, maker: GrammarMaker, limits: GrammarLimits | None = None, workers: int = 2) -> None:
        self._maker = maker
        self._limits = limits or GrammarLimits()
        with large_stacks():
            self._threads = start_threads(max(1, workers - 1), "grammar", yield_to_others)
            # What takes long waits for its like: no flood of large grammars keeps a small one from a thread
            self._threads_for_large = self._threads
            if workers > 1:
                self._threads_for_large = start_threads(1, "grammar", yield_to_others)
        self._cache: GrammarCache[CompiledGrammar] = GrammarCache()
        self._jobs: dict[Key, Job] = {}

    async def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the grammar ready for use, any number of times.

        Raises GrammarRefused, with the member of the request and the JSON pointer of what is wrong
        there, Overloaded if no thread gets to it in time, and GenerationFailed if native code panics.
        """
        key = (f"{grammar.kind} {grammar.lead}", grammar.source)
        found = self._cache.get(key)
        if found is not None:
            return found
        job = self._jobs.get(key)
        if job is None or job.work.cancelled():
            job = self._begin(key, grammar)
        job.waiting += 1
        try:
            return await self._wait(job)
        except GrammarFault as fault:
            raise fault.refusal(grammar.part(fault.label)) from None
        finally:
            job.waiting -= 1
            if not job.waiting and not job.started.is_set():
                job.work.cancel()  # nobody wants it any more

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        for threads in (self._threads, self._threads_for_large):
            threads.shutdown(wait=False, cancel_futures=True)
        self._maker.close()

    def _begin(self, key: Key, grammar: Grammar) -> Job:
        loop = asyncio.get_running_loop()
        started = asyncio.Event()
        threads = self._threads if len(grammar.source) <= SMALL_CHARACTERS else self._threads_for_large
        working = threads.submit(self._maker.make, grammar, self._limits, partial(_tell, loop, started.set))
        job = self._jobs[key] = Job(started, working, asyncio.wrap_future(working))
        job.result.add_done_callback(lambda _: self._end(key, job))
        job.result.add_done_callback(lambda _: started.set())  # it failed before it began: that is to be told
        return job

    def _end(self, key: Key, job: Job) -> None:
        if self._jobs.get(key) is job:
            del self._jobs[key]
        if not job.result.cancelled() and job.result.exception() is None:
            self._cache.put(key, job.result.result())

    async def _wait(self, job: Job) -> CompiledGrammar:
        seconds = self._limits.seconds
        try:
            async with asyncio.timeout(seconds):
                await job.started.wait()
        except TimeoutError:
            raise Overloaded(RETRY_SECONDS) from None
        # The thread can't be stopped, and need not be: the other limits end its work, or its process's
        done, _ = await asyncio.wait([job.result], timeout=seconds)
        if not done:
            raise too_slow(self._limits)
        if job.result.cancelled():  # the server ends
            raise Overloaded(RETRY_SECONDS)
        error = job.result.exception()
        if error is not None and not isinstance(error, Exception):  # a panic of native code
            raise GenerationFailed(f"The grammar's compiler failed: {type(error).__name__}") from error
        return job.result.result()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
