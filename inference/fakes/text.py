"""What a fake engine says: tokens drawn from a hash of the request, within what the request allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from inference.grammar.masks import Endings, Guide
from inference.prompt_tops import PromptTops, TopTokens
from inference.types import CompiledGrammar, CoreRequest, FinishReason, Sampling

WORD = 2**64 - 1
LENGTH, TOKEN, LOGPROB, TOP, PROMPT, PROMPT_TOP = range(6)  # what is drawn
EXCLUSIVE_BIAS = 100.0  # from which on a bias leaves no choice: nothing but the token, or never it

# What an answer depends on; the watermark apart, as it can be None, whose hash is another in each process
_OF_SAMPLED = attrgetter(*(each.name for each in fields(Sampling) if each.name != "watermark"))
_OF_GREEDY = attrgetter(
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "typical_p"
)

Ids = NDArray[np.int64]


@dataclass(slots=True)
class FakeSequence:
    """A request being answered."""

    request: CoreRequest
    scripted: Sequence[int]  # what to say; empty: tokens are made up
    length: int  # of the answer, without its EOS
    failure: str | None  # with which it ends, once it has as many tokens as `fails_after`
    fails_after: int
    started: float
    key: int  # what the answer depends on
    guide: Guide | None = None  # there if the request has a grammar
    generated: int = 0
    cached: int = 0  # prompt tokens that were found in the prefix cache

    @property
    def hides_eos(self) -> bool:
        """Return whether the next token may not be EOS if it can be anything else."""
        ignored = self.request.ignore_eos and self.guide is not None
        return ignored or self.generated < self.request.min_new_tokens


class FakeVocabulary:
    """Which tokens there are, and which of those that are allowed is taken."""

    def __init__(self, tokens: Sequence[int], eos_token_id: int, texts: Sequence[str]) -> None:
        self._tokens = tokens
        self._eos = eos_token_id
        self.size = len(texts) or max(*tokens, eos_token_id) + 1
        self._endings = Endings(self.size, (eos_token_id,))
        # The lowest ranks are taken: in the middle of a text, and when it is long enough
        self._going_on = np.full(self.size, 1, dtype=np.int8)
        self._ending = np.full(self.size, 4, dtype=np.int8)
        for token_id, text in enumerate(texts):
            self._ending[token_id] = _distance_to_end(text)
            self._going_on[token_id] = 1 if text.strip() else 2
        self._going_on[[token for token in tokens if not texts or texts[token].strip()]] = 0
        self._going_on[eos_token_id] = 3
        self._ending[eos_token_id] = 0

    def guide(self, grammar: CompiledGrammar) -> Guide:
        """Return a guide that computes at once, at the beginning of a text."""
        guide = Guide(grammar.start(), self._endings, Guide.compute)
        guide.begin()
        return guide

    def next_token(self, sequence: FakeSequence) -> tuple[int, Sequence[int] | Ids]:
        """Return the next token of an answer, and what it was chosen among."""
        at, bias = sequence.generated, sequence.request.sampling.logit_bias
        wanted = self._wanted(sequence, at)
        if sequence.guide is None and not bias:
            return wanted, self._tokens
        allowed = _biased(self._allowed(sequence), bias)
        if (allowed == wanted).any():
            return wanted, allowed
        ends = sequence.guide is not None and at >= sequence.length
        ranks = (self._ending if ends else self._going_on)[allowed]
        best = allowed[ranks == ranks.min()]
        return int(best[draw(sequence.key, TOKEN, at, len(best))]), allowed

    def finish(self, sequence: FakeSequence, token_id: int) -> FinishReason | None:
        """Return why the answer ends with the token that was its last so far; None if it goes on."""
        if sequence.generated >= sequence.request.max_new_tokens:
            return FinishReason.LENGTH
        if token_id == self._eos and (sequence.guide is not None or not sequence.request.ignore_eos):
            return FinishReason.EOS
        return None

    def prompt_top(self, sequence: FakeSequence) -> PromptTops | None:
        """Return the likeliest tokens at each place of the prompt but the first."""
        wanted = sequence.request.prompt_top_n_tokens
        if not wanted:
            return None
        ids, logprobs = sequence.request.prompt_ids, prompt_logprobs(sequence)
        places = range(1, len(ids))
        firsts = (draw(sequence.key, PROMPT_TOP, at, len(self._tokens)) for at in places)
        rows = zip(firsts, ids[1:], logprobs[1:], strict=True)
        ranked = (_ranked(self._tokens, first, each, of or 0.0, wanted) for first, each, of in rows)
        return PromptTops.of([(), *ranked])

    def _wanted(self, sequence: FakeSequence, at: int) -> int:
        """Return what would come next if everything were allowed."""
        if at == sequence.length or (sequence.guide is not None and at > sequence.length):
            return self._eos
        if at < len(sequence.scripted):
            return sequence.scripted[at]
        return self._tokens[draw(sequence.key, TOKEN, at, len(self._tokens))]

    def _allowed(self, sequence: FakeSequence) -> Ids:
        mask = sequence.guide.mask if sequence.guide is not None else None
        if sequence.hides_eos:
            mask = self._endings.hidden(mask)
        if mask is None:
            return np.arange(self.size)
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: self.size])


def request_key(request: CoreRequest) -> int:
    """Return what the answer to a request depends on: its prompt, and of its sampling what matters to it."""
    sampling = request.sampling
    # Of numbers alone, so the same in every process
    mark = (sampling.watermark.gamma, sampling.watermark.delta) if sampling.watermark else 0
    chosen = (_OF_SAMPLED if sampling.sample else _OF_GREEDY)(sampling)
    return hash((request.prompt_ids, chosen, (mark, request.adapter) if request.adapter >= 0 else mark))


def draw(key: int, purpose: int, at: int, choices: int) -> int:
    """Return a number below `choices` that depends on key, purpose and place only."""
    mixed = (key + purpose * 0x9E3779B97F4A7C15 + at * 0xD1B54A32D192ED03) & WORD
    for _ in range(2):  # the finaliser of splitmix64
        mixed = ((mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9) & WORD
    return (mixed >> 16) % choices


def prompt_logprobs(sequence: FakeSequence) -> tuple[float | None, ...]:
    """Return a log-probability for each prompt token but the first."""
    places = range(1, len(sequence.request.prompt_ids))
    return (None, *(-(1 + draw(sequence.key, PROMPT, at, 5000)) / 1000 for at in places))


def top_tokens(
    sequence: FakeSequence, among: Sequence[int] | Ids, token_id: int, logprob: float
) -> TopTokens:
    """Return as many likely tokens as are asked for, the chosen one first."""
    wanted = sequence.request.top_n_tokens
    if not wanted:
        return ()
    first = draw(sequence.key, TOP, sequence.generated, len(among))
    return _ranked(among, first, token_id, logprob, wanted)


def _ranked(among: Sequence[int] | Ids, first: int, token_id: int, logprob: float, wanted: int) -> TopTokens:
    """Return a token and some of the others, from the place `first` on, each less likely than the last."""
    near = (int(among[(first + step) % len(among)]) for step in range(min(wanted, len(among))))
    ranked = [token_id, *(other for other in near if other != token_id)][:wanted]
    return tuple((other, logprob - rank) for rank, other in enumerate(ranked))


def _biased(allowed: Ids, bias: Sequence[tuple[int, float]]) -> Ids:
    """Return the tokens that exclusive biases leave."""
    never = [token for token, amount in bias if amount <= -EXCLUSIVE_BIAS]
    always = [token for token, amount in bias if amount >= EXCLUSIVE_BIAS]
    left = allowed[~np.isin(allowed, never)]
    forced = left[np.isin(left, always)]
    return next((ids for ids in (forced, left) if ids.size), allowed)


def _distance_to_end(text: str) -> int:
    """Return how little a token helps to end a text of JSON: quotes first, as strings hold anything else."""
    if not text.strip():
        return 4
    if text.strip('"]}'):
        return 3
    return 1 if '"' in text else 2
