"""What computes a step and chooses its tokens, as the engine's loop sees it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from inference.sequences.chosen import Chosen
from inference.sequences.state import Pieces
from inference.sequences.work import Work

_Computed = TypeVar("_Computed", covariant=True)
_Read = TypeVar("_Read", contravariant=True)


class Runner(Protocol[_Computed]):
    """Computes keys, values and logits."""

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> _Computed:
        """Compute the pieces' tokens and return the logits of those that `pieces.rows` names.

        Until the next call, as memory is used again. `tokens_only`: of these only the best token is read.
        """


class Sampler(Protocol[_Read]):
    """Chooses tokens."""

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return whether `choose` will ask the pieces' logits for nothing but each row's best token.

        As long as whoever decodes gets a token, and nobody else: no row was held, and none will be.
        """

    def choose(self, work: Work, logits: _Read | None) -> Chosen:
        """Return what the logits say of the work's sequences; None if there are no pieces.

        The rows of those that are late are kept in their `held`, and no token is chosen.
        """


class IdleWork(Protocol):
    """Makes ready what later steps will need."""

    def advance(self, high_water: int) -> bool:
        """Do a little, in milliseconds; return false if there was nothing to do.

        `high_water`: the cache's blocks before this one have been in use.
        """
