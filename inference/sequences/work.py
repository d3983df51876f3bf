"""What one step chooses tokens of."""

from __future__ import annotations

from dataclasses import dataclass

from inference.sequences.state import Pieces, Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """What one step chooses tokens of: the pieces' logits, and rows that were held until now."""

    pieces: Pieces
    late: frozenset[Sequence] = frozenset()  # of them, whose row is to be held: its mask isn't there yet
    resumed: tuple[Sequence, ...] = ()  # whose row was held, and whose mask has come
    gone: frozenset[Sequence] = frozenset()  # of the pieces, whose requests were aborted while they computed

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Return those that get a token: the pieces' in order, then the resumed ones.

        The same object as long as the same sequences decode and nothing else happens.
        """
        if not self.late and not self.resumed and not self.gone:
            return self.pieces.sampling
        return (*(each for each in self.pieces.sampling if self.chooses(each)), *self.resumed)

    def chooses(self, sequence: Sequence) -> bool:
        """Return whether one of the pieces' sequences gets its token."""
        return sequence not in self.late and sequence not in self.gone

    @property
    def first(self) -> int:
        """Return how many of `sequences` go on; those behind get a first token, or one they waited for."""
        some = self.pieces.decodes if self.late or self.gone else ()
        return len(self.pieces.decodes) - sum(not self.chooses(each) for each in some)

    @property
    def touched(self) -> tuple[Sequence, ...]:
        """Return all that a failure of the step concerns."""
        computed = (*self.pieces.decodes, *(chunk.sequence for chunk in self.pieces.prompts))
        return (*(each for each in computed if each not in self.gone), *self.resumed)
