"""The paper model, whose steps raise for sequences that a test names, after half of their work is done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from inference.sequences.chosen import Chosen
from inference.sequences.faults import RequestFault
from inference.sequences.state import Chunk, Integers, Pieces, Sequence
from inference.sequences.work import Work
from tests.unit.inference.paper_model import PaperRunner, PaperSampler, homes

TRASH = 49  # what a step that fails leaves where it should have written


class Where(Enum):
    """What raises."""

    RUNNER = auto()
    RUNNER_SAYS_WHO = auto()
    SAMPLER = auto()


@dataclass(frozen=True)
class Fault:
    """A request's fault."""

    where: Where
    generated: int  # comes when it has so many tokens, and is to get another one; -1: with its first piece


class Faults(dict[str, Fault]):
    """The faults of some requests, by their ids."""

    def __init__(self, faults: dict[str, Fault] | None = None) -> None:
        super().__init__(faults or {})
        self.broken = False  # every step raises
        self.once = False  # the next one does
        self.raised = 0

    def in_pieces(self, pieces: Pieces) -> Sequence | None:
        """Return whose fault keeps pieces from being computed."""
        for chunk in pieces.chunks:
            fault = self.get(chunk.sequence.id)
            if fault is not None and fault.where is not Where.SAMPLER and _comes(fault, chunk):
                return chunk.sequence
        return None

    def in_choice(self, sequences: tuple[Sequence, ...]) -> Sequence | None:
        """Return whose fault keeps their tokens from being chosen."""
        for sequence in sequences:
            fault = self.get(sequence.id)
            if fault is not None and fault.where is Where.SAMPLER and sequence.generated >= fault.generated:
                return sequence
        return None


class FaultyRunner:
    """Computes as another one does, but for the faults, which leave trash where they come."""

    def __init__(self, runner: PaperRunner, faults: Faults) -> None:
        self._runner = runner
        self._faults = faults

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Any:
        """Compute, or not."""
        guilty = self._faults.in_pieces(pieces)
        if guilty is None and not self._faults.broken and not self._faults.once:
            return self._runner.run(pieces, tokens_only=tokens_only)
        slots = np.repeat(pieces.slots, pieces.stops - pieces.starts)
        for home in homes(pieces.table, slots, pieces.positions).tolist():
            self._runner.slots[home] = TRASH
        self._faults.once = False
        self._faults.raised += 1
        if guilty is not None and self._faults[guilty.id].where is Where.RUNNER_SAYS_WHO:
            raise RequestFault(guilty) from ArithmeticError("a number that isn't")
        raise ArithmeticError("a number that isn't")


class FaultySampler:
    """Chooses as another one does, but for the faults, which come when all else is done."""

    def __init__(self, sampler: PaperSampler, faults: Faults, newest: dict[int, int] | None = None) -> None:
        """`newest`: what a paper device believes, which is to be told the truth then."""
        self._sampler = sampler
        self._faults = faults
        self._newest = newest

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return what the other one does."""
        return self._sampler.tokens_only(pieces)

    def choose(self, work: Work, logits: Any) -> Chosen:
        """Choose, or not."""
        chosen = self._sampler.choose(work, logits)
        if self._faults.in_choice(work.sequences) is None:
            return chosen
        if self._newest is not None:
            for sequence in work.pieces.sampling:
                if sequence not in work.gone:
                    self._newest[sequence.slot] = int(sequence.ids[-1])
        self._faults.raised += 1
        raise KeyError("a token that isn't")

    def choose_rows(self, sequences: tuple[Sequence, ...], logits: Any, rows: Integers) -> Chosen:
        """Choose by some rows, or not."""
        if self._faults.in_choice(sequences) is None:
            return self._sampler.choose_rows(sequences, logits, rows)
        self._faults.raised += 1
        raise KeyError("a token that isn't")

    def select(self, logits: Any, rows: Integers) -> Any:
        """Return some rows."""
        return self._sampler.select(logits, rows)


def _comes(fault: Fault, chunk: Chunk) -> bool:
    return fault.generated < 0 or chunk.stop >= chunk.sequence.prompt_length + fault.generated
