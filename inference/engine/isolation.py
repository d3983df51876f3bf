"""Whose work makes a step fail: what failed is computed again in halves, until that request stands alone.

One request among n is found by 2 * log2(n) steps at most. Where it is known whose work has failed, that
is said by a `RequestFault`, and the others are computed again together.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from inference.scheduling.scheduler import Batch
from inference.sequences.faults import RequestFault, StepLost
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack
from inference.sequences.work import Work

FAILURES = 16  # in a row, by which no single request is to blame: all that is left fails
_PROBES = 3  # of them that are spent on the next batch, until a step goes well: all of it, and its halves


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some of a step's sequences, with what is to be computed for each."""

    table: SlotTable
    decodes: tuple[Sequence, ...]
    prompts: tuple[Chunk, ...]
    resumed: tuple[Sequence, ...]  # nothing: their rows of logits are held

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Return whose they are."""
        return (*self.decodes, *(chunk.sequence for chunk in self.prompts), *self.resumed)

    def of(self, some: Container[Sequence]) -> Part:
        """Return what is some of the sequences'."""
        return Part(
            self.table,
            tuple(sequence for sequence in self.decodes if sequence in some),
            tuple(chunk for chunk in self.prompts if chunk.sequence in some),
            tuple(sequence for sequence in self.resumed if sequence in some),
        )

    def halves(self) -> list[Part]:
        """Return the first and the second half."""
        sequences = self.sequences
        middle = len(sequences) // 2
        return [self.of(frozenset(sequences[:middle])), self.of(frozenset(sequences[middle:]))]


class Isolation:
    """What is left of steps that failed, to be computed again before anything else.

    Nothing else is scheduled meanwhile, so that what a part says is to be computed stays true.
    """

    def __init__(self) -> None:
        self.failures = 0  # in a row, but for those of a request that was alone from the beginning
        self._parts: list[Part] = []
        self._owed = (0, 0, 0, 0.0)  # what `Batch` counts, of steps that failed

    @property
    def open(self) -> bool:
        """Return whether something may be left."""
        return bool(self._parts)

    def drop(self) -> None:
        """Leave what is left to the scheduler, which knows of it as if it had never been tried."""
        self._parts = []

    def take(self, running: Container[Sequence]) -> Batch | None:
        """Return the largest part, of those of its sequences that still run; None if nothing is left.

        The largest, because a step that goes well is known soonest to be possible by it.
        """
        while self._parts:
            part = max(self._parts, key=_size)
            self._parts.remove(part)
            left = part.of(running)
            if left.sequences:
                return self._batch(left)
        return None

    def repeat(self, batch: Batch, work: Work) -> None:
        """Take a step that failed, and that nobody is to blame for: all of it is computed again."""
        self._parts.append(self._whole(batch, work))

    def blame(self, batch: Batch, work: Work, error: Exception) -> tuple[Sequence, ...]:
        """Take a step that failed; return who fails with it. The others are left to be computed again."""
        whole = self._whole(batch, work)
        sequences = whole.sequences
        if isinstance(error, StepLost):
            return sequences
        if isinstance(error, RequestFault) and error.sequence in sequences:
            self._parts.append(whole.of(frozenset(sequences) - {error.sequence}))
            return (error.sequence,)
        if len(sequences) == 1 and not batch.again:
            return sequences
        self.failures += 1
        if self.failures >= FAILURES:
            return self._give_up(whole)
        if len(sequences) > 1:
            self._parts += whole.halves()
            return ()
        return sequences

    def _whole(self, batch: Batch, work: Work) -> Part:
        self._owed = (batch.admitted, batch.preempted, batch.cached_tokens, batch.seconds)
        pieces = batch.pieces
        return Part(pieces.table, pieces.decodes, pieces.prompts, work.resumed).of(frozenset(work.touched))

    def _give_up(self, part: Part) -> tuple[Sequence, ...]:
        everyone = tuple(sequence for each in (part, *self._parts) for sequence in each.sequences)
        self._parts = []
        self.failures = FAILURES - _PROBES
        return everyone

    def _batch(self, part: Part) -> Batch:
        decodes = Decodes()
        for sequence in part.decodes:
            decodes.add(sequence)
        owed, self._owed = self._owed, (0, 0, 0, 0.0)
        return Batch(pack(part.table, decodes, part.prompts), *owed, resumed=part.resumed)


def _size(part: Part) -> int:
    return len(part.sequences)
