"""Which tokens a grammar lets follow, found beside the model on threads of their own.

A mask has one bit for each token of the vocabulary, the lowest first, in words of 32. A sequence
with a grammar has a `Guide`: told the token that was chosen, it goes on by that token and fills the
mask for the next one while the model computes. Guides that were slow before share a thread, so that
they delay each other and nobody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.grammar.stack import large_stacks
from inference.grammar.threads import yield_to_others
from inference.types import CompiledGrammar, Matcher

LOG = logging.getLogger(__name__)

GRACE_SECONDS = 0.002  # that a step waits for masks which are usually there by then
SLOW_SECONDS = 0.005  # of work for one mask, from which on a guide gets in nobody's way
WORKERS = 2
_JOIN_SECONDS = 5.0

Mask = NDArray[np.uint32]


@runtime_checkable
class Late(Protocol):
    """A matcher with work to do before its first mask, e.g. to compile the grammar."""

    @property
    def seconds_to_prepare(self) -> float:
        """Return how long that is going to take; 0 where it is done."""

    def prepare(self) -> None:
        """Do it."""


class Endings:
    """The EOS tokens, as bits of a mask."""

    def __init__(self, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        ids = np.array([token for token in eos_token_ids if token < vocabulary], dtype=np.int64)
        self.words = -(-vocabulary // 32)
        self.some = bool(ids.size)
        self._bits: Mask = np.zeros(self.words, dtype=np.uint32)
        np.bitwise_or.at(self._bits, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        self._others = ~self._bits

    def open(self, mask: Mask) -> None:
        """Allow all EOS tokens where one is allowed: a text that may end may end with any."""
        if (mask & self._bits).any():
            mask |= self._bits

    def only(self, mask: Mask) -> None:
        """Allow the EOS tokens and nothing else."""
        mask[:] = self._bits

    def hidden(self, mask: Mask | None) -> Mask:
        """Return the mask (None: everything) without EOS, unless nothing would be left."""
        if mask is None:
            return self._others
        others = mask & self._others
        return others if others.any() else mask


class Guide:
    """One text's way through its grammar.

    The engine's thread calls `begin` or `advance`, and reads the rest only while `ready` is true; in
    between, the guide belongs to one of the pool's threads.
    """

    def __init__(self, matcher: Matcher, endings: Endings, submit: Callable[[Guide], None]) -> None:
        self.mask: Mask = np.zeros(endings.words, dtype=np.uint32)
        self.failure: str | None = None  # why the text can't go on
        self.ready = False  # `mask`, or `failure`, is that of the whole text so far; set by the pool
        self.complete = False  # the text has ended, and the model has no EOS to say so
        self.begun = False
        self._late = matcher if isinstance(matcher, Late) else None
        # Seconds that a mask has taken lately; before the first one, what comes before it
        self.cost = self._late.seconds_to_prepare if self._late else 0.0
        self._matcher = matcher
        self._endings = endings
        self._submit = submit
        self._next: int | None = None  # the token to go on by
        self._closed = False

    def begin(self) -> None:
        """Have the mask for the first token filled."""
        self._submit(self)
        self.begun = True  # not before: a step that finds no memory for this begins it again

    def advance(self, token_id: int) -> None:
        """Go on by a token, and have the mask for the one after it filled."""
        self.ready = False
        self._next = token_id
        if not self._endings.some:  # no token will say that the text has ended, so it is asked here
            self._protect(self._accept)
            self.complete = self.failure is None and self._matcher.finished
        if not self.complete:
            self._submit(self)

    def close(self) -> None:
        """Spare the work that nobody waits for any more."""
        self._closed = True

    def compute(self) -> None:
        """Do what `begin` and `advance` ask for; called by the pool."""
        if self._closed:
            return
        if self._late is not None:
            self._protect(self._late.prepare)
            self._late, self.cost = None, 0.0  # of no mask
        started, worked = time.monotonic(), time.thread_time()
        self._protect(self._accept, self._fill)
        # A machine under load stretches the time that passes, not the work; a tenth tells a sleeper
        spent = max(time.thread_time() - worked, (time.monotonic() - started) / 10)
        self.cost = max(spent, self.cost / 2)

    def _accept(self) -> None:
        token, self._next = self._next, None
        if token is not None and not self._matcher.accept(token):
            why = self._matcher.error or f"it does not allow token {token}, which its mask did"
            self.failure = f"The grammar can't be followed any further: {why}"

    def _fill(self) -> None:
        if self._matcher.finished:
            self._endings.only(self.mask)
        else:
            self._matcher.fill_mask(self.mask)
            self._endings.open(self.mask)
        if self._matcher.error is not None:
            self.failure = f"The grammar can't be followed any further: {self._matcher.error}"
        elif not self.mask.any():
            self.failure = "The grammar can't be followed any further: no token of the model fits it here"

    def _protect(self, *work: Callable[[], None]) -> None:
        for part in work:
            if self.failure is not None:
                return
            try:
                part()
            except BaseException as error:  # a panic of native code is no Exception
                LOG.exception("A grammar's matcher failed")
                self.failure = f"The grammar's matcher failed: {type(error).__name__}: {error}"


class MaskPool:
    """The threads that fill masks, started by the first grammar.

    `changed` is notified of each mask that is ready: whoever waits for masks and other things
    together gives a condition of its own.
    """

    def __init__(
        self,
        vocabulary: int,
        eos_token_ids: Sequence[int],
        *,
        changed: threading.Condition | None = None,
        workers: int = WORKERS,
    ) -> None:
        self.endings = Endings(vocabulary, eos_token_ids)
        self._changed = changed or threading.Condition()
        self._workers = workers
        self._quick: SimpleQueue[Guide | None] = SimpleQueue()
        self._slow: SimpleQueue[Guide | None] = SimpleQueue()  # one thread's
        self._threads: list[threading.Thread] = []

    def guide(self, grammar: CompiledGrammar) -> Guide:
        """Return a guide at the beginning of a text."""
        return Guide(grammar.start(), self.endings, self._submit)

    def wait(self, guides: Sequence[Guide], seconds: float = GRACE_SECONDS) -> None:
        """Wait until those guides are ready that usually are within this time, and no longer than it."""
        quick = [guide for guide in guides if not guide.ready and guide.cost <= seconds]
        if quick:
            with self._changed:
                self._changed.wait_for(lambda: all(guide.ready for guide in quick), seconds)

    def close(self) -> None:
        """End the threads once each has done what it is at; guides still queued are left alone."""
        for lane, threads in ((self._quick, self._workers), (self._slow, 1)):
            _drain(lane)
            for _ in range(threads if self._threads else 0):
                lane.put(None)
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        self._threads = []

    def _submit(self, guide: Guide) -> None:
        if len(self._threads) <= self._workers:
            self._start()
        (self._slow if guide.cost > SLOW_SECONDS else self._quick).put(guide)

    def _start(self) -> None:
        """Start the threads, or those that there was no room for when it was tried before."""
        lanes = [self._quick] * self._workers + [self._slow]
        with large_stacks():
            for lane in lanes[len(self._threads) :]:
                thread = threading.Thread(target=self._serve, args=(lane,), name="grammar-masks", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _serve(self, lane: SimpleQueue[Guide | None]) -> None:
        yield_to_others()  # the model's threads come first where processors are few
        while (guide := lane.get()) is not None:
            guide.compute()
            with self._changed:
                guide.ready = True
                self._changed.notify_all()
            del guide  # an ended request's matcher isn't kept until the next mask


def _drain(lane: SimpleQueue[Guide | None]) -> None:
    while not lane.empty():
        lane.get()
