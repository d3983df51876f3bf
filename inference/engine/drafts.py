"""Tokens that are guessed to follow a text, computed in one step with its newest token.

The guess is what followed the same tokens before (prompt lookup, Saxena 2023; TGI's n-gram speculation).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inference.sequences.state import Integers, Pieces, Sequence

_LONGEST = 3  # tokens that two places are compared by
_SHORTEST = 2  # of one token alone, what follows it is seldom the same


def propose(ids: Integers, most: int) -> Integers:
    """Return at most `most` tokens that may follow `ids` (n,), none if nothing like their end came before.

    They followed the latest place where the last tokens stand once more: three of them, or else two. If
    the text ends before so many came, it goes on from there as if it repeated itself.
    """
    ends = np.flatnonzero(ids[:-1] == ids[-1])
    best = ends[:0]
    for back in range(1, min(_LONGEST, len(ids))):
        ends = ends[ends >= back]
        ends = ends[ids[ends - back] == ids[-1 - back]]
        if not len(ends):
            break
        best = ends if back + 1 >= _SHORTEST else best
    if not len(best):
        return best
    first = int(best[-1]) + 1
    return ids[first + np.arange(most) % (len(ids) - first)]


@dataclass(frozen=True, slots=True)
class Drafts:
    """A step of decodes, some of them with guesses behind their newest token."""

    pieces: Pieces  # to be computed: a row of logits for each token
    firsts: Integers  # (decodes,): the row by which a decode's next token is chosen
    sequences: tuple[Sequence, ...]  # those with guesses
    guesses: tuple[Integers, ...]  # beside them
    lengths: tuple[int, ...]  # beside them: tokens known before the step
    rows: Integers  # beside them: their `firsts`

    @property
    def deepest(self) -> int:
        """Return how many guesses a sequence has at most."""
        return max(map(len, self.guesses))

    @property
    def count(self) -> int:
        """Return how many guesses there are."""
        return sum(map(len, self.guesses))

    def confirmed(self, depth: int) -> tuple[tuple[Sequence, ...], Integers]:
        """Return whose first `depth` guesses are the tokens that were chosen, and their next rows.

        Of those that go on; the same object as the decodes if it is all of these.
        """
        right = [at for at in range(len(self.sequences)) if self._is_right(at, depth)]
        sequences = tuple(self.sequences[at] for at in right)
        decodes = self.pieces.decodes
        return decodes if sequences == decodes else sequences, self.rows[right] + depth

    def hits(self) -> list[int]:
        """Return how many of each sequence's guesses were right, once all was chosen."""
        known = zip(self.sequences, self.lengths, strict=True)
        return [max(sequence.length - length - 1, 0) for sequence, length in known]

    def _is_right(self, at: int, depth: int) -> bool:
        sequence, guess, length = self.sequences[at], self.guesses[at], self.lengths[at] + depth
        if len(guess) < depth or sequence.slot < 0 or sequence.length != length:  # it ended, or went astray
            return False
        return bool(sequence.ids[-1] == guess[depth - 1])


def with_guesses(pieces: Pieces, guesses: dict[int, Integers]) -> Drafts:
    """Return a step of decodes with guesses, by the decode's place among them."""
    counts = np.zeros(len(pieces.decodes), dtype=np.int64)
    for row, guess in guesses.items():
        counts[row] = len(guess)
    sizes = counts + 1
    firsts = sizes.cumsum() - sizes
    rows = np.arange(int(sizes.sum()))
    ids = np.empty(len(rows), dtype=np.int64)
    ids[firsts] = pieces.ids
    for row, guess in guesses.items():
        ids[firsts[row] + 1 : firsts[row] + sizes[row]] = guess
    drafted = replace(
        pieces,
        stops=pieces.stops + counts,
        ids=ids,
        positions=np.repeat(pieces.starts - firsts, sizes) + rows,
        rows=rows,
    )
    places = list(guesses)
    return Drafts(
        drafted,
        firsts,
        tuple(pieces.decodes[row] for row in places),
        tuple(guesses.values()),
        tuple(pieces.stops[places].tolist()),
        firsts[places],
    )
