"""What steps take on after one for which memory was too short: less, and more again by and by."""

from __future__ import annotations

from dataclasses import replace

from inference.scheduling.budget import Limits
from inference.sequences.state import Pieces, Sequence

LEAST_TOKENS = 32  # a step of one sequence with no more can't be made smaller
EASED_STEPS = 256  # after which steps may be twice as large again


class Easing:
    """The limits of steps, and those that count for now."""

    def __init__(self, limits: Limits) -> None:
        self.now = limits
        self._limits = limits
        self._steps = 0  # since a step failed, or the limits grew

    def begin_step(self) -> None:
        """Have steps grow again, twice as large after so many that went well."""
        if self.now is self._limits:
            return
        self._steps += 1
        if self._steps < EASED_STEPS:
            return
        self._steps = 0
        now, most = self.now, self._limits
        tokens, sequences = min(2 * now.tokens, most.tokens), min(2 * now.sequences, most.sequences)
        done = (tokens, sequences) == (most.tokens, most.sequences)
        self.now = most if done else replace(most, tokens=tokens, sequences=sequences)

    def shrink(self, pieces: Pieces, running: list[Sequence]) -> list[Sequence] | None:
        """Return who of those that run, in the order of arrival, goes back into the queue.

        None if the step can't be smaller. A prompt that can't be cut, and is most of the step, stays alone:
        if there is no memory for it then, it fails, and doesn't come back to have everybody wait again.
        """
        tokens = sum(chunk.size for chunk in pieces.prompts) + len(pieces.decodes)
        least = tokens <= LEAST_TOKENS or tokens > self.now.tokens  # an image that isn't cut
        if len(running) <= 1 and (least or not self._limits.chunked):
            return None
        stay = (len(running) + 1) // 2
        alone = self._largest(pieces, tokens)
        fewer = max(tokens // 2, stay, LEAST_TOKENS if alone is None else 1)
        self.now = replace(self._limits, tokens=min(fewer, self._limits.tokens), sequences=stay)
        self._steps = 0
        if alone is not None:
            return [each for each in running if each is not alone]
        # What the runner keeps for itself may be half of a step further
        kept = (each for each in running[:stay] if each.cache is not None)
        return [*running[stay:], *kept]

    def _largest(self, pieces: Pieces, tokens: int) -> Sequence | None:
        """Return whose prompt is most of a step, and is computed whole or not at all."""
        for chunk in pieces.prompts:
            whole = not self._limits.chunked or chunk.size > self.now.tokens
            if whole and 2 * chunk.size > tokens:
                return chunk.sequence
        return None
