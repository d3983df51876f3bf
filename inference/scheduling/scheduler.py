"""Which tokens the next step computes: one budget, decodes first, then prompts."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np

from inference.kv_cache.blocks import PAGE, BlockPool, blocks_for
from inference.kv_cache.snapshots import Snapshots
from inference.scheduling.budget import Budget, Limits
from inference.scheduling.easing import Easing
from inference.scheduling.fairness import FairQueue
from inference.scheduling.pace import Pace
from inference.scheduling.prefix import PrefixCache
from inference.sequences.state import Decodes, Integers, Pieces, Sequence, SlotTable, pack
from inference.step_stats import Obstacle

__all__ = ["Batch", "Limits", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of one step."""

    pieces: Pieces
    admitted: int  # sequences taken from the queue
    preempted: int  # sequences put back into it
    cached_tokens: int  # prompt tokens that needn't be computed
    seconds: float = 0.0  # that it took to find
    resumed: tuple[Sequence, ...] | None = None  # who goes on by a row that was held; None: all who can

    @property
    def again(self) -> bool:
        """Return whether it is a part of a step that failed."""
        return self.resumed is not None


class Scheduler:
    """The queue, the running sequences and their blocks.

    A sequence is admitted when a slot is free, and blocks for all its known tokens, and takes one
    more whenever it grows past its last. If none is free then, a sequence gives up its blocks and
    goes back into the queue, to be computed again: of the owner with the most running work the one
    that came last. So the one that came first of all always goes on, and a sequence that is alone
    always fits: the limit of its total length is at most the cache's capacity.
    """

    def __init__(
        self, pool: BlockPool, limits: Limits, table: SlotTable, *, prefix_caching: bool = True
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._easing = Easing(limits)
        self._table = table
        # Whole prompts are computed by transformers' own cache, which has no blocks to share
        snapshots = Snapshots(table.snapshots) if table.snapshots else None
        self._prefix = PrefixCache(pool, table, snapshots, enabled=prefix_caching and limits.chunked)
        self.waiting = FairQueue()
        self.running: dict[Sequence, None] = {}  # in the order in which they were admitted
        self._decodes = Decodes()
        self._prompts: dict[Sequence, None] = {}  # running, and not computed to their end
        self._arrivals = 0
        self.obstacle = Obstacle.BUDGET  # why those that wait weren't admitted by the last step,
        self.awaiting = 0  # but for so many, whose prefix another sequence is computing
        self.pace = Pace()  # and for those that it holds back

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to compute."""
        return not self.waiting and not self.running

    @property
    def kv_tokens(self) -> int:
        """Return how many tokens of running sequences are in the cache."""
        return sum(self._table.computed.tolist())

    @property
    def held_tokens(self) -> int:
        """Return for how many tokens running sequences hold blocks; one that several hold counts once."""
        return (self._pool.size - self._pool.available) * PAGE

    @property
    def high_water(self) -> int:
        """Return the block from which on none was in use since the books were begun."""
        return self._pool.high_water

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others of its owner."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Forget a sequence and free its blocks, wherever it stands; `keep`: they may be found again."""
        if sequence in self.running:
            self._release(sequence, keep=keep)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> Batch:
        """Return the next step's work; its blocks are held when this returns."""
        began = time.monotonic()
        self._easing.begin_step()
        preempted = self._grow_decodes()
        self.pace.begin()
        self.obstacle, self.awaiting = Obstacle.MEMORY if preempted else Obstacle.BUDGET, 0
        unfinished = len(self._prompts) + len(self.waiting)
        if not unfinished:
            return Batch(pack(self._table, self._decodes), 0, preempted, 0, time.monotonic() - began)
        budget = Budget(self._easing.now, used=len(self._decodes.sequences), waiting=unfinished)
        cached = self._continue_prompts(budget)
        admitted, found = self._admit(budget) if self.waiting and not preempted else (0, 0)
        pieces = pack(self._table, self._decodes, budget.chunks())
        return Batch(pieces, admitted, preempted, cached + found, time.monotonic() - began)

    def complete(self, pieces: Pieces, chosen: Iterable[Sequence], parked: Iterable[Sequence]) -> None:
        """Take note of what a step computed, who got a token beside the decodes, and who waits for one."""
        self.computed(pieces)
        self.go_on(chosen, parked)

    def computed(self, pieces: Pieces, *, ahead: bool = False) -> None:
        """Take note of what a step has computed, or will have before any later one.

        `ahead`: of the decodes the newest tokens that it computes aren't known yet.
        """
        self._table.computed[pieces.slots] = pieces.stops
        self._prefix.keep_states(pieces, ahead=ahead)
        for chunk in pieces.prompts:
            self._prefix.publish(chunk.sequence)
            if chunk.samples:
                del self._prompts[chunk.sequence]

    def take_back(self, pieces: Pieces, gone: Container[Sequence]) -> None:
        """Take note that what counts as computed is to be computed again, but for who is `gone`."""
        for chunk in pieces.chunks:
            if chunk.sequence not in gone:
                self._table.computed[chunk.sequence.slot] = chunk.start
        for chunk in pieces.prompts:
            if chunk.sequence not in gone:
                self._prompts[chunk.sequence] = None

    def go_on(self, chosen: Iterable[Sequence], parked: Iterable[Sequence] = ()) -> None:
        """Take note of who got a token beside the decodes, and who waits for one."""
        for sequence in parked:
            self._decodes.discard(sequence)
        for sequence in chosen:
            self._decodes.add(sequence)

    def expect(self, sequences: tuple[Sequence, ...]) -> Integers:
        """Count a token of each sequence that is being chosen; return the positions (n,) where they belong.

        Those whose text ends by its length with that token decode no more.
        """
        decodes = self._decodes
        same = sequences is decodes.sequences  # as in most steps
        slots = decodes.slots if same else np.array([each.slot for each in sequences], dtype=np.int64)
        positions = self._table.lengths[slots]
        self._table.lengths[slots] = positions + 1
        for row in (positions + 1 >= self._table.limits[slots]).nonzero()[0].tolist():
            decodes.discard(sequences[row])
        return positions

    def room_for(self, sequence: Sequence, count: int) -> int:
        """Return how many of `count` tokens, that a text may go on with, there are blocks for.

        One is taken for them if there are plenty: nobody gives way for a guess.
        """
        length, room = sequence.length, self._table.room
        if length + count > room[sequence.slot] and self._pool.available > len(self.running):
            self._prefix.publish(sequence)
            self._take(sequence, 1)
        return min(count, int(room[sequence.slot]) - length)

    def confirm(self, sequences: tuple[Sequence, ...]) -> None:
        """Take note that the newest token of each of them was guessed, and is computed already."""
        self._table.computed[[sequence.slot for sequence in sequences]] += 1

    @property
    def must_preempt(self) -> bool:
        """Return whether the decodes need more blocks than there are."""
        slots = self._decodes.slots
        full = self._table.lengths[slots] > self._table.room[slots]
        return int(full.sum()) > self._pool.available

    def ease(self, pieces: Pieces) -> int | None:
        """Make steps smaller, after one for which memory was too short, and of which nothing is known.

        Some of what runs goes back into the queue; their texts will be the same. Returns how many that are;
        None if the step can't be smaller.
        """
        back = self._easing.shrink(pieces, sorted(self.running, key=_arrival))
        for sequence in back or ():
            self._put_back(sequence)
        return None if back is None else len(back)

    def check(self) -> list[str]:
        """Return what is wrong with the books, looking at every block."""
        faults = self._pool.check(sequence.blocks for sequence in self.running) + self._prefix.check()
        if self._table.free + len(self.running) != self._limits.sequences:
            faults.append(f"{self._table.free} free slots, {len(self.running)} sequences run")
        return faults + (self.check_idle() if self.idle else [])

    def check_idle(self) -> list[str]:
        """Return what is wrong with the books of an idle scheduler, as far as counts show it."""
        faults = self.waiting.check() + self._pool.check_idle()
        if not self._prefix.quiet:
            faults.append("blocks are announced that nobody computes")
        if self._table.free != self._limits.sequences:
            faults.append(f"{self._table.free} of {self._limits.sequences} slots are free")
        return faults

    def reset(self) -> None:
        """Begin the books anew, nothing cached; nothing waits or runs."""
        assert self.idle, "only an idle scheduler can begin anew"
        self._pool.clear()
        self._table.clear()
        self._prefix.clear()
        self.waiting = FairQueue()
        self._decodes = Decodes()
        self._prompts = {}

    def _grow_decodes(self) -> int:
        """Make room for the decodes' newest tokens; return how many sequences were preempted for it."""
        slots = self._decodes.slots
        full = self._table.lengths[slots] > self._table.room[slots]
        if True not in full.tolist():  # sooner said than by numpy's `any`, as in sampler.py
            return 0
        before = len(self.running)
        sequences = self._decodes.sequences
        for sequence in sorted((sequences[row] for row in full.nonzero()[0]), key=_arrival):
            self._prefix.publish(sequence)
            self._grow(sequence)
        return before - len(self.running)

    def _grow(self, sequence: Sequence) -> None:
        while sequence in self.running:
            if self._pool.available:
                self._take(sequence, 1)
                return
            self._preempt(self.waiting.last_of(self.running))

    def _take(self, sequence: Sequence, count: int) -> None:
        last = sequence.blocks[-1] if sequence.blocks else None
        self._table.extend(sequence, self._pool.take(count, last))
        self.waiting.burden(sequence, count)

    def _preempt(self, sequence: Sequence) -> None:
        assert len(self.running) > 1, "a sequence that is alone must fit"
        self._put_back(sequence)

    def _put_back(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.preemptions += 1
        self.waiting.add(sequence)

    def _continue_prompts(self, budget: Budget) -> int:
        cached = 0
        for sequence in self._prompts:
            if budget.spent:
                break
            cached += self._count_cached(sequence, self._prefix.adopt(sequence))
            budget.take(sequence, sequence.remaining)
        return cached

    def _admit(self, budget: Budget) -> tuple[int, int]:
        """Let sequences in; return how many, and how many of their tokens were found."""
        before, cached = len(self.running), 0
        for sequence in self.waiting.candidates():
            if len(self.running) >= self._easing.now.sequences:
                self.obstacle = Obstacle.SEQUENCES
                break
            if budget.spent:
                break
            if self.pace.holds(sequence):
                continue
            found = self._prefix.find(sequence)
            if self._prefix.awaits(sequence, len(found)):
                self.awaiting += 1
                continue  # others may go first until it is there
            if not self._fits(sequence, found):
                self.obstacle = Obstacle.MEMORY
                break  # who is first gets the next blocks: nobody passes for being small
            if budget.take(sequence, sequence.length - len(found) * PAGE):
                self._enter(sequence, found)
                cached += self._count_cached(sequence, sequence.computed)
        return len(self.running) - before, cached

    def _fits(self, sequence: Sequence, found: list[int]) -> bool:
        needed = blocks_for(sequence.length) - len(found) + self._pool.idle_among(found)
        # One block is left for each running sequence, or the newcomer would soon be preempted
        return needed + len(self.running) <= self._pool.available or not self.running

    def _enter(self, sequence: Sequence, found: list[int]) -> None:
        self.waiting.remove(sequence)
        self.running[sequence] = None
        self._prompts[sequence] = None
        self._pool.hold(found)
        self._table.enter(sequence)
        self._table.extend(sequence, found)
        self.waiting.burden(sequence, len(found))
        self._take(sequence, blocks_for(sequence.length) - len(found))
        self._table.computed[sequence.slot] = len(found) * PAGE
        sequence.published = len(found)
        self._prefix.begin(sequence)

    def _release(self, sequence: Sequence, *, keep: bool = True) -> None:
        if keep:
            self._prefix.publish(sequence)
        self._prefix.end(sequence, keep=keep)
        self._pool.give_back(sequence.blocks, keep=keep)
        self.waiting.burden(sequence, -len(sequence.blocks))
        del self.running[sequence]
        self._prompts.pop(sequence, None)
        self._decodes.discard(sequence)
        self._table.leave(sequence)

    def _count_cached(self, sequence: Sequence, tokens: int) -> int:
        """Return the prompt tokens that a sequence found, not those that it had computed itself before."""
        if sequence.preemptions:
            return 0
        sequence.cached_tokens += tokens
        return tokens


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
