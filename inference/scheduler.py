"""Which tokens the next step computes: one budget, decodes first, then prompts in order of arrival."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from inference.blocks import BlockPool, blocks_for
from inference.state import Chunk, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step may take on."""

    tokens: int  # computed in one step; >= sequences
    sequences: int  # running at once
    logit_rows: int  # of one step's prompts whose log-probabilities were asked for: bounds memory
    chunked: bool = True  # false: prompts are computed whole; a step's first one may pass the budget


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of one step: decodes first."""

    chunks: tuple[Chunk, ...]
    admitted: int  # sequences taken from the queue
    preempted: int  # sequences put back into it


class Scheduler:
    """The queue, the running sequences and their blocks.

    A sequence is admitted when blocks for all its known tokens are free, and takes one more
    whenever it grows past its last. If none is free then, the newest sequence gives up all of its
    blocks and goes back to the head of the queue, to be computed again. A sequence that is alone
    always fits: the limit of its total length is at most the cache's capacity.
    """

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self._pool = pool
        self._limits = limits

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to compute."""
        return not self.waiting and not self.running

    @property
    def kv_tokens(self) -> int:
        """Return how many tokens of running sequences are in the cache."""
        return sum(sequence.computed for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks, wherever it stands."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> Batch:
        """Return the next step's work; its blocks are held when this returns."""
        waiting_before = len(self.waiting)
        decodes = self._decodes()
        preempted = len(self.waiting) - waiting_before
        budget = _Budget(self._limits, used=len(decodes))
        prompts = self._continue_prompts(budget)
        running_before = len(self.running)
        prompts += self._admit(budget)  # never what was preempted just now: its blocks aren't all free
        return Batch(tuple(decodes + prompts), len(self.running) - running_before, preempted)

    def _decodes(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in tuple(self.running):
            if sequence.remaining == 1 and self._grow(sequence):
                chunks.append(Chunk(sequence, sequence.computed, sequence.length))
        return chunks

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the sequence's newest token; false if it was, or had to be, preempted."""
        while sequence in self.running:
            missing = blocks_for(sequence.length) - len(sequence.blocks)
            if missing <= self._pool.free:
                sequence.blocks += self._pool.take(missing)
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, sequence: Sequence) -> None:
        assert len(self.running) > 1, "a sequence that is alone must fit"
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _continue_prompts(self, budget: _Budget) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in self.running:
            size = budget.take(sequence) if sequence.remaining > 1 else 0
            if size:
                chunks.append(Chunk(sequence, sequence.computed, sequence.computed + size))
        return chunks

    def _admit(self, budget: _Budget) -> list[Chunk]:
        chunks: list[Chunk] = []
        while self.waiting and len(self.running) < self._limits.sequences:
            sequence = self.waiting[0]
            needed = blocks_for(sequence.length)
            # One block is left for each running sequence, or the newcomer would soon be preempted.
            if self.running and needed + len(self.running) > self._pool.free:
                break
            size = budget.take(sequence)
            if not size:
                break
            sequence.blocks = self._pool.take(needed)
            self.running.append(self.waiting.popleft())
            chunks.append(Chunk(sequence, 0, size))
        return chunks

    def _release(self, sequence: Sequence) -> None:
        self._pool.give_back(sequence.blocks)
        sequence.forget_computed()


class _Budget:
    """What is left of one step's limits."""

    def __init__(self, limits: Limits, used: int) -> None:
        self._chunked = limits.chunked
        self._tokens = limits.tokens - used
        self._rows = limits.logit_rows
        self._first = True  # no prompt has taken of it

    def take(self, sequence: Sequence) -> int:
        """Return how many of the sequence's tokens fit, 0 if none, and count them as used."""
        size = min(sequence.remaining, self._tokens)
        if not self._chunked and size < sequence.remaining:
            size = sequence.remaining if self._first else 0
        if sequence.wants_prompt_logprobs and self._chunked:
            size = min(size, self._rows)
            self._rows -= size
        self._tokens -= size
        self._first = False
        return size
