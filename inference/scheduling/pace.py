"""Whom what is large isn't computed for, as they have enough to read already."""

from __future__ import annotations

from collections.abc import Callable

from inference.sequences.state import Sequence


class Pace:
    """Has prompts wait whose log-probabilities nobody would read for now: they are kept in memory till then.

    Belongs to the engine's thread, but for `full`, which may say something else at any time.
    """

    def __init__(self) -> None:
        self.full: Callable[[str], bool] = lambda request_id: False  # whether its reader has enough
        self._held: list[Sequence] = []  # by the step that is being made, or was made last

    def begin(self) -> None:
        """Forget whom the last step held back."""
        self._held = []

    def holds(self, sequence: Sequence) -> bool:
        """Return whether a sequence isn't to be let in by this step."""
        if not sequence.wants_prompt_logprobs or not self.full(sequence.id):
            return False
        self._held.append(sequence)
        return True

    @property
    def released(self) -> bool:
        """Return whether one who was held back may be let in now."""
        return any(not self.full(sequence.id) for sequence in self._held)
