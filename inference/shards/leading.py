"""The first shard's side of a step: the others are told of it, and all compute it together."""

from __future__ import annotations

from torch import Tensor

from inference.sampling.rows import Statistics
from inference.sequences.computing import IdleWork
from inference.sequences.state import Pieces
from inference.shards.group import Group
from inference.shards.runner import SharedRunner
from inference.shards.steps import Teller


class LeadingRunner:
    """Runs a step's pieces in all processes."""

    def __init__(self, runner: SharedRunner, group: Group, teller: Teller) -> None:
        runner.serve()
        self._runner = runner
        self._group = group
        self._teller = teller

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits (rows, vocabulary), in float32; raise ShardLost, whatever it was.

        Where one process has failed in the middle of a step, the others wait for what doesn't come.
        """
        try:
            self._teller.step(pieces, tokens_only=tokens_only)
            return self._runner.run(pieces, tokens_only=tokens_only)
        except Exception as error:
            raise self._group.lose(error) from error

    def statistics(self, scores: Tensor) -> Statistics:
        """Return the statistics of scores (n, v)."""
        return self._runner.statistics(scores)


class LeadingIdleWork:
    """Makes ready in all processes what later steps will need."""

    def __init__(self, own: IdleWork, teller: Teller) -> None:
        self._own = own
        self._teller = teller

    def advance(self, high_water: int) -> bool:
        """Do a little, as the others do, whose caches are alike; return false if there was nothing to do."""
        if not self._own.advance(high_water):
            return False
        self._teller.idle(high_water)
        return True
