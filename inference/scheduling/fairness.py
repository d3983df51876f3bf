"""Who of those that wait goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from inference.sequences.state import Sequence


class FairQueue:
    """Sequences that wait: first in, first out within an owner, and owners by how much of theirs runs.

    The work of an owner is the number of blocks that its running sequences hold, each counted for
    each: what it takes of the memory, and, as attention reads them all, of the time.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Sequence]] = {}  # of each owner, in order of arrival
        self._work: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        """Return how many sequences wait."""
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """Return the sequences that wait, in order of arrival."""
        everyone = (sequence for line in self._waiting.values() for sequence in line)
        return iter(sorted(everyone, key=_arrival))

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait, before those of its owner that arrived later."""
        line = self._waiting.setdefault(sequence.request.owner, [])
        at = len(line)
        while at and line[at - 1].arrival > sequence.arrival:
            at -= 1
        line.insert(at, sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence wait no more."""
        line = self._waiting[sequence.request.owner]
        line.remove(sequence)
        self._count -= 1
        if not line:
            del self._waiting[sequence.request.owner]

    def burden(self, sequence: Sequence, blocks: int) -> None:
        """Count blocks that a sequence takes, or, if negative, gives back, as its owner's work."""
        owner = sequence.request.owner
        self._work[owner] += blocks
        if not self._work[owner]:
            del self._work[owner]

    def candidates(self) -> Iterator[Sequence]:
        """Return who goes first, then who would go first if that one can't, and so on.

        A candidate may be removed and its owner burdened before the next one is asked for.
        """
        passed: Counter[str] = Counter()  # candidates of each owner that stayed
        while best := min(self._heads(passed), key=self._order, default=None):
            owner, left = best.request.owner, self._count
            yield best
            passed[owner] += left == self._count

    def last_of(self, running: Collection[Sequence]) -> Sequence:
        """Return who gives way: of the owner with the most work the newest, never who came first of all."""
        first = min(running, key=_arrival)
        return max((each for each in running if each is not first), key=self._order, default=first)

    def check(self) -> list[str]:
        """Return what is wrong if nothing runs or waits."""
        if self._count or self._waiting or self._work:
            return [f"{self._count} wait in {len(self._waiting)} lines, work is {dict(self._work)}"]
        return []

    def _heads(self, passed: Counter[str]) -> Iterator[Sequence]:
        return (line[passed[o]] for o, line in self._waiting.items() if passed[o] < len(line))

    def _order(self, sequence: Sequence) -> tuple[int, int]:
        return self._work[sequence.request.owner], sequence.arrival


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
