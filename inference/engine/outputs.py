"""From a step's tokens to what is said of them: in whole columns, and by the row where one is special."""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat
from logging import getLogger

import numpy as np

from inference.grammar.masks import Guide
from inference.prompt_tops import PromptTops
from inference.sequences.chosen import Chosen
from inference.sequences.faults import explain
from inference.sequences.state import Integers, Sequence, SlotTable
from inference.types import CoreOutput, FinishReason

LOG = getLogger(__name__)

_FAR = 1 << 62  # tokens
_OF_THE_FIRST = PromptTops.of([()])  # token, which nothing comes before

Finishes = dict[Sequence, FinishReason]
Failures = dict[Sequence, str]


class Outputs:
    """Gives sequences their tokens, finds the texts that end with them, and says so.

    What is said of a sequence again and again is kept as long as the same ones get tokens.
    """

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos: Integers = np.array(eos_token_ids, dtype=np.int64)
        self._endings = frozenset(eos_token_ids)
        self._sequences: tuple[Sequence, ...] = ()
        self._slots: Integers = np.empty(0, dtype=np.int64)
        self._limits: Integers = np.empty(0, dtype=np.int64)  # the lengths at which their texts end
        self._heeds_eos = np.empty(0, dtype=np.bool_)
        self._left = 0  # tokens that none of them can end with by its length
        self._said: tuple[list[str], list[float], list[int]] = ([], [], [])  # ids, started, cached tokens
        self._guides: list[tuple[int, Guide]] = []  # and their rows

    def publish(
        self,
        table: SlotTable,
        sequences: tuple[Sequence, ...],
        chosen: Chosen,
        first: int,
        failures: Failures,
        positions: Integers | None = None,
    ) -> tuple[list[CoreOutput], Finishes, Failures]:
        """Add the tokens to their sequences; return an output for each, who ends and why, and who failed.

        The sequences from row `first` on get their first token, or one that they waited for. Those
        that failed, before this or in it, get a token without a meaning, and don't end here.
        `positions` (n,): where the tokens belong, if that isn't the end of what the table has of their
        sequences.
        """
        if sequences is not self._sequences:
            self._keep(table, sequences)
        asked = [row for row in range(first, len(sequences)) if sequences[row].wants_prompt_logprobs]
        if positions is None:
            lengths = table.append(self._slots, chosen.tokens)
        else:
            lengths = table.put(self._slots, positions, chosen.tokens)
        tokens = chosen.tokens.tolist()
        finishes = self._finishes(lengths, chosen.tokens, tokens)
        if self._guides:
            ended, broken = self._finish_guided(chosen.tokens, finishes.keys() | failures.keys())
            finishes, failures = finishes | ended, failures | broken
        finishes = {sequence: why for sequence, why in finishes.items() if sequence not in failures}
        ids, started, cached = self._said
        ends = [finishes.get(sequence) for sequence in sequences] if finishes else repeat(None)
        tops = repeat(()) if chosen.top is None else chosen.top
        outputs = list(map(CoreOutput, ids, tokens, chosen.logprobs, tops, ends, started, cached))
        for row in asked:
            outputs[row] = _with_prompt(outputs[row], sequences[row])
        if finishes:  # those that ended aren't kept until the next token
            self._keep(table, ())
        return outputs, finishes, failures

    def _keep(self, table: SlotTable, sequences: tuple[Sequence, ...]) -> None:
        self._sequences = sequences
        self._slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        self._limits = table.limits[self._slots]
        self._heeds_eos = table.heeds_eos[self._slots]
        self._left = 0
        self._said = (
            [sequence.id for sequence in sequences],
            [sequence.started for sequence in sequences],
            [sequence.cached_tokens for sequence in sequences],
        )
        guides = ((row, sequence.guide) for row, sequence in enumerate(sequences))
        self._guides = [(row, guide) for row, guide in guides if guide is not None]

    def _finishes(self, lengths: Integers, tokens: Integers, ids: list[int]) -> Finishes:
        """Return the ends that need no grammar to be seen; `ids`: the tokens."""
        if self._left > 0 and self._endings.isdisjoint(ids):  # as in most steps
            self._left -= 1
            return {}
        full = lengths >= self._limits
        self._left = int((self._limits - lengths).min(initial=_FAR)) - 1
        eos = (tokens[:, None] == self._eos).any(1) & self._heeds_eos
        found = full | eos
        if not found.any():
            return {}
        # TGI's order: length before EOS
        return {
            self._sequences[row]: FinishReason.LENGTH if full[row] else FinishReason.EOS
            for row in found.nonzero()[0].tolist()
        }

    def _finish_guided(self, tokens: Integers, over: Collection[Sequence]) -> tuple[Finishes, Failures]:
        """Tell the guides of their tokens; return the ends of texts with a grammar that aren't over.

        A guide that raises is its own sequence's failure.
        """
        finishes: Finishes = {}
        failures: Failures = {}
        for row, guide in self._guides:
            sequence, token = self._sequences[row], int(tokens[row])
            if sequence in over:
                continue
            if token in self._endings:
                finishes[sequence] = FinishReason.EOS
                continue
            try:
                guide.advance(token)
            except BaseException as error:  # a panic of native code is no Exception
                LOG.exception("The grammar of request %s failed", sequence.id)
                failures[sequence] = explain(sequence.id, error)
                continue
            if guide.complete:  # not EOS: its token would be no part of the text
                finishes[sequence] = FinishReason.STOP
        return finishes, failures


def _with_prompt(output: CoreOutput, sequence: Sequence) -> CoreOutput:
    """Add the prompt's log-probabilities and top tokens, as is done once, with the first token."""
    wanted = sequence.request.prompt_top_n_tokens
    top = PromptTops.joined([_OF_THE_FIRST, *sequence.prompt_top]) if wanted else None
    return CoreOutput(
        output.id,
        output.token_id,
        output.logprob,
        output.top,
        output.finish,
        output.started,
        output.cached_tokens,
        (None, *sequence.prompt_logprobs),
        top,
    )
