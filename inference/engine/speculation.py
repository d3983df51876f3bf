"""For which texts tokens are guessed, and how many.

A guess is right if it is the token that is chosen in its place, with the logits that all before it give,
and the noise of that place. So texts are those without guesses, drawn or not: to the last bit where a token's
logits don't depend on what is computed beside it, and else as they are in other company.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from inference.engine.drafts import Drafts, propose, with_guesses
from inference.grammar.masks import GRACE_SECONDS, MaskPool
from inference.scheduling.scheduler import Scheduler
from inference.sequences.chosen import Chosen
from inference.sequences.state import Integers, Pieces, Sequence
from inference.sequences.work import Work

LOG = logging.getLogger(__name__)

_Logits = TypeVar("_Logits")

# Of a step's decodes and guesses together. Each one more takes about an eighth of the time of a step with one
# (python -m benchmarks.scaling); with this many it is twice the time
MOST_TOKENS = 8
_NEWS = 0.3  # what the latest guesses count for
_UNKNOWN = 0.5  # what is believed of a text at first, and after a rest
_REST_STEPS, _LONGEST_REST = 32, 512  # after guesses that didn't pay; twice as many each time


class RowSampler(Protocol[_Logits]):
    """Chooses tokens by any rows of a step's logits."""

    def choose(self, work: Work, logits: _Logits | None) -> Chosen:
        """Return what the logits say of the work's sequences, a row for each of the pieces' `rows`."""

    def choose_rows(self, sequences: tuple[Sequence, ...], logits: _Logits, rows: Integers) -> Chosen:
        """Return what some `rows` say of sequences that go on, without a grammar."""

    def select(self, logits: _Logits, rows: Integers) -> _Logits:
        """Return some of the rows."""


@dataclass(slots=True)
class _Record:
    """How well a text was guessed lately."""

    trust: float = _UNKNOWN  # share of right guesses, the latest counting most
    rest: int = 0  # steps until the next guess
    pause: int = _REST_STEPS  # steps of the next rest

    def give_up(self) -> None:
        """Rest, and longer the next time."""
        self.trust, self.rest = _UNKNOWN, self.pause
        self.pause = min(2 * self.pause, _LONGEST_REST)


class Speculation(Generic[_Logits]):
    """Guesses what follows, for texts in which that was right lately."""

    def __init__(self, scheduler: Scheduler, sampler: RowSampler[_Logits], most: int, tokens: int) -> None:
        """`most`: guesses for each text in a step; `tokens`: of a step, with guesses."""
        self._scheduler = scheduler
        self._sampler = sampler
        self._most = most
        self._tokens = tokens
        self._records: WeakKeyDictionary[Sequence, _Record] = WeakKeyDictionary()

    def draft(self, pieces: Pieces) -> Drafts | None:
        """Return a step with guesses; None if there are none to be made, as where prompts are computed."""
        spare = self._tokens - len(pieces.decodes)
        if spare <= 0 or pieces.prompts or not pieces.decodes:
            return None
        guesses: dict[int, Integers] = {}
        found = self._propose(pieces, spare)
        for at, (row, guess) in enumerate(found.items()):
            share = min(-(-spare // (len(found) - at)), len(guess))
            room = self._scheduler.room_for(pieces.decodes[row], share) if share else 0
            if room:
                guesses[row] = guess[:room]
                spare -= room
        return with_guesses(pieces, guesses) if guesses else None

    def choose(self, work: Work, drafts: Drafts, logits: _Logits) -> Chosen:
        """Return the tokens of a step's work, as without guesses; raises what the sampler does."""
        if any(sequence.guide is not None for sequence in work.pieces.decodes) or work.resumed:
            return self._sampler.choose(work, self._sampler.select(logits, drafts.firsts))
        return self._sampler.choose_rows(drafts.pieces.decodes, logits, drafts.firsts)

    def verify(
        self, drafts: Drafts, logits: _Logits, masks: MaskPool
    ) -> Iterator[tuple[tuple[Sequence, ...], Chosen]]:
        """Yield whose guess was right and what follows it, one token of each text at a time.

        Before the next, whoever asks has to give them these. A failure ends it, as does a mask that isn't
        there in a moment for its text: the next step computes the same, and tells whose failure it is.
        """
        for depth in range(1, drafts.deepest + 1):
            sequences, rows = _with_masks(masks, *drafts.confirmed(depth))
            if not sequences:
                return
            try:
                chosen = self._sampler.choose_rows(sequences, logits, rows)
            except Exception as error:
                LOG.warning("No token was chosen behind a guess: %s", type(error).__name__, exc_info=error)
                return
            self._scheduler.confirm(sequences)
            yield sequences, chosen

    def learn(self, drafts: Drafts) -> int:
        """Take note of what was right; return how many guesses were."""
        hits = drafts.hits()
        # What a guess costs, all texts of the step wait for; what it gives, one of them gets
        least = len(drafts.pieces.decodes) / MOST_TOKENS
        for sequence, guess, right in zip(drafts.sequences, drafts.guesses, hits, strict=True):
            record = self._records.setdefault(sequence, _Record())
            record.trust += _NEWS * (right / len(guess) - record.trust)
            if record.trust < least:
                record.give_up()
            elif record.trust > _UNKNOWN:
                record.pause = _REST_STEPS
        return sum(hits)

    def rest(self, drafts: Drafts) -> None:
        """Guess nothing for a while in the texts of a step that has failed: it may not bear guesses."""
        for sequence in drafts.sequences:
            self._records.setdefault(sequence, _Record()).give_up()

    def _propose(self, pieces: Pieces, spare: int) -> dict[int, Integers]:
        found: dict[int, Integers] = {}
        for row, sequence in enumerate(pieces.decodes):
            if sequence.guide is not None and sequence.guide.cost > GRACE_SECONDS:
                continue  # its masks won't be there in time
            record = self._records.get(sequence)
            if record is not None and record.rest:
                record.rest -= 1
                continue
            left = int(pieces.table.limits[sequence.slot]) - sequence.length - 1  # the last is never computed
            trust = _UNKNOWN if record is None else record.trust
            most = min(math.ceil(self._most * trust), spare, left)
            guess = self._guess(sequence, most) if most > 0 else sequence.ids[:0]
            if len(guess):
                found[row] = guess
        return found

    def _guess(self, sequence: Sequence, most: int) -> Integers:
        return propose(sequence.ids, most)


def _with_masks(
    masks: MaskPool, sequences: tuple[Sequence, ...], rows: Integers
) -> tuple[tuple[Sequence, ...], Integers]:
    """Return those of some sequences, and their rows, whose masks are there after waiting for a moment."""
    guides = [sequence.guide for sequence in sequences if sequence.guide is not None]
    if not guides:
        return sequences, rows
    masks.wait(guides)
    there = [at for at, sequence in enumerate(sequences) if sequence.has_mask]
    return tuple(sequences[at] for at in there), rows[there]
