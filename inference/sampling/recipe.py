"""What is to be done with the logits of some sequences: found once, and used while they stay together."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from inference.sampling.candidates import Filters
from inference.sequences.state import Integers, Sequence
from inference.types import CoreRequest, LogprobsMode, Sampling

MOST_COUNTED = 2**14 - 1  # of one token in a text, by a device


class Recipe:
    """The rows of `sequences`, sorted by what is to be done with them.

    Rows that are `plain` get the best token of the model's own scores. The others are `shaped`:
    warped, and then `filtered`, or their best token is taken (`best`), or one is drawn of the whole
    row (`whole`); these three are indices into `shaped`.

    Whoever is told no log-probabilities gets those that cost the least.
    """

    def __init__(self, sequences: tuple[Sequence, ...]) -> None:
        samplings = [sequence.request.sampling for sequence in sequences]
        plain = np.array([_is_plain(sequence) for sequence in sequences], dtype=np.bool_)
        self.sequences = sequences
        self.plain: Integers = plain.nonzero()[0]
        self.shaped: Integers = (~plain).nonzero()[0]
        self.partners = tuple(sequences[row] for row in self.shaped)  # the shaped rows' sequences
        self.samplings = [samplings[row] for row in self.shaped]
        self.looks_back = any(map(_looks_back, self.samplings))
        filters = filters_of(self.samplings)
        some = filters.any
        self.filtered: Integers = some.nonzero()[0]
        self.filters = filters.of(self.filtered)
        self.drawn: NDArray[np.bool_] = np.array([each.sample for each in self.samplings], dtype=np.bool_)
        self.best: Integers = (~some & ~self.drawn).nonzero()[0]
        self.whole: Integers = (~some & self.drawn).nonzero()[0]
        self.seeds = np.array([sampling.seed for sampling in self.samplings], dtype=np.uint64)
        raw = [sequence.request.logprobs is LogprobsMode.RAW for sequence in sequences]
        self.own: Integers = (np.array(raw, dtype=np.bool_) | plain).nonzero()[
            0
        ]  # of whose scores logprobs are
        self._processed = [not each for each in raw]
        self.tops = [sequence.request.top_n_tokens for sequence in sequences]
        self.all_plain = len(self.plain) == len(sequences) and not any(self.tops)
        nobody = all(sequence.request.logprobs is LogprobsMode.NONE for sequence in sequences)
        self.asks_nothing = bool(sequences) and self.all_plain and nobody  # but which token is the best

    @property
    def reads_logits(self) -> bool:
        """Return whether anything is said of the model's own scores."""
        return bool(len(self.own))

    def processed_tops(self, rows: Integers) -> list[int]:
        """Return how many top tokens of the warped and filtered scores each of some rows wants."""
        return [self.tops[row] if self._processed[row] else 0 for row in rows.tolist()]


def drawn_by_device(request: CoreRequest, *, shapes: bool = False) -> bool:
    """Return whether all of a request's tokens are the likeliest, or drawn by temperature alone.

    A device chooses those by itself, whatever it computes beside them: a request's tokens never depend
    on which requests run with it. One that `shapes` knows filters and penalties, too.
    """
    sampling = request.sampling
    by_itself = (
        (sampling.sample or sampling.temperature == 1)
        and request.grammar is None
        and not (request.min_new_tokens or request.top_n_tokens or request.prompt_logprobs)
    )
    return by_itself and (by_temperature_alone(sampling) or (shapes and _is_shapable(request)))


def by_temperature_alone(sampling: Sampling) -> bool:
    """Return whether tokens are the likeliest, or drawn of all of the model's own scores."""
    return sampling == Sampling(sample=sampling.sample, temperature=sampling.temperature, seed=sampling.seed)


def _is_shapable(request: CoreRequest) -> bool:
    """Return whether a device that knows filters and penalties knows all that a request has of them."""
    sampling = request.sampling
    countable = not sampling.frequency_penalty or request.max_new_tokens <= MOST_COUNTED
    return countable and sampling.typical_p >= 1 and not sampling.logit_bias and sampling.watermark is None


def _is_plain(sequence: Sequence) -> bool:
    request = sequence.request
    masked = sequence.guide is not None or request.min_new_tokens > 0
    return (
        not masked
        and not request.sampling.sample
        and request.sampling == Sampling(seed=request.sampling.seed)
    )


def _looks_back(sampling: Sampling) -> bool:
    penalties = (sampling.repetition_penalty - 1, sampling.frequency_penalty, sampling.presence_penalty)
    return sampling.watermark is not None or any(penalties)


def filters_of(samplings: Several[Sampling]) -> Filters:
    """Return the filters that the requests ask for, a row each."""
    off = np.inf  # of 1.0: sums of all the mass that is left may round to more
    return Filters(
        np.array([sampling.top_k for sampling in samplings], dtype=np.int64),
        np.array([s.top_p if s.top_p < 1 else off for s in samplings], dtype=np.float64),
        np.array([sampling.min_p for sampling in samplings], dtype=np.float64),
        np.array([s.typical_p if s.typical_p < 1 else off for s in samplings], dtype=np.float64),
    )
