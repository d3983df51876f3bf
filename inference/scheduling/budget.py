"""What is left of one step's limits while its prompts are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from inference.sequences.state import Chunk, Sequence

_PER_TEXT = 3  # prompt tokens that may be computed for each text that goes on
# Where so many prompts wait for each text that goes on, these wait for a whole step once: the many then begin
# and end together, and break in upon each other less
_CROWD = 4
_WHILE_NONE_GO_ON = 4  # times as many prompts may be read whole in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step may take on."""

    tokens: int  # computed in one step; >= sequences
    sequences: int  # running at once
    logit_rows: int  # of one step's prompts with log-probabilities: bounds memory, but for one image
    chunked: bool = True  # false: prompts are computed whole; a step's first one may pass the budget
    beside: int | None = None  # prompt tokens of a step in which texts go on; None: no limit of its own
    whole: int | None = None  # prompts of such a step, each computed by itself; None: no limit of its own


class Budget:
    """One step's tokens, given to prompts in the order in which they ask.

    A prompt that fits is computed whole. The first that doesn't is computed in pieces: it leaves half of the
    step to prompts behind it. Of these, too, one that doesn't fit and is shorter gets half of what is left,
    and so on. So a short prompt never waits for a long one to its end, and the long one goes on. What nobody
    takes goes to the shortest of them.
    """

    def __init__(self, limits: Limits, used: int, waiting: int = 0) -> None:
        """`used`: texts that go on, a token each; `waiting`: prompts that aren't computed to their end."""
        self._limits = limits
        self._tokens = limits.tokens - used
        if limits.beside is not None and waiting < _CROWD * used:
            # With many texts a step takes long anyway, and more prompts come than small pieces would serve
            self._tokens = min(self._tokens, max(limits.beside, _PER_TEXT * used))
        self._share = max(self._tokens // 2, 1)  # of a prompt that doesn't fit, while others want the rest
        self._rows = limits.logit_rows
        self._whole = limits.whole and (limits.whole if used else limits.whole * _WHILE_NONE_GO_ON)
        self._sizes: dict[Sequence, int] = {}
        self._pieces: list[Sequence] = []  # of those that don't fit, each shorter than the one before
        self._shortest = 0  # tokens of the last of them

    @property
    def spent(self) -> bool:
        """Return whether nothing is left."""
        return self._tokens <= 0

    def take(self, sequence: Sequence, remaining: int) -> bool:
        """Give a sequence of its `remaining` tokens what it gets in this step; false if that is nothing."""
        size = self._size(remaining)
        scored = sequence.wants_prompt_logprobs and self._limits.chunked
        if scored:
            size = min(size, max(self._rows, 0))
        size = _cut(sequence, remaining, size)
        if scored:
            self._rows -= size
        if not size:
            return False
        if size < remaining:
            self._pieces.append(sequence)
            self._shortest = remaining
        self._tokens -= size
        self._sizes[sequence] = size
        return True

    def chunks(self) -> list[Chunk]:
        """Return the pieces, what was left given to the prompts that don't fit.

        Only now it is known where states are to be kept: of a prompt when it is let in, of one that runs when
        another waits for how both begin.
        """
        for sequence, size in list(self._sizes.items()):
            self._resize(sequence, min(_cut(sequence, sequence.remaining, size), size))
        for sequence in reversed(self._pieces):
            size = self._sizes[sequence]
            spare = min(self._tokens, self._rows) if sequence.wants_prompt_logprobs else self._tokens
            wanted = size + max(min(sequence.remaining - size, spare), 0)
            self._resize(sequence, max(_cut(sequence, sequence.remaining, wanted), size))
        sizes = {sequence: _cut(sequence, sequence.remaining, size) for sequence, size in self._sizes.items()}
        return [Chunk(s, s.computed, s.computed + size) for s, size in sizes.items()]

    def _resize(self, sequence: Sequence, size: int) -> None:
        more = size - self._sizes[sequence]
        self._sizes[sequence] = size
        self._tokens -= more
        self._rows -= more if sequence.wants_prompt_logprobs else 0

    def _size(self, remaining: int) -> int:
        if not self._limits.chunked:
            if self._whole is not None and len(self._sizes) >= self._whole:
                return 0
            return remaining if remaining <= self._tokens or not self._sizes else 0
        if remaining <= self._tokens:
            return remaining
        if not self._pieces:
            return min(self._share, self._tokens)
        return max(self._tokens + 1, 0) // 2 if remaining < self._shortest else 0


def _cut(sequence: Sequence, remaining: int, size: int) -> int:
    """Return the size of a piece that ends where its state is to be kept, and cuts no image in two.

    For an image that has to be whole it may be a larger one.
    """
    start = sequence.length - remaining
    for cut in sequence.beginning.cuts:
        if start < cut < start + size:
            size = cut - start
    if sequence.sight is None or size <= 0:
        return size
    return sequence.sight.whole(start, start + size) - start
