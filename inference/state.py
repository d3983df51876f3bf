"""What the engine holds of each sequence, and the pieces of work that one step is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.masks import Guide
from inference.types import CoreRequest

TopTokens = tuple[tuple[int, float], ...]  # (token id, logprob), best first
TokenIds = NDArray[np.int64]


class Sequence:
    """A request on its way through the engine; only the engine's thread touches it."""

    def __init__(self, request: CoreRequest, guide: Guide | None = None) -> None:
        self.request = request
        self.guide = guide  # there if the request has a grammar
        self.prompt_length = len(request.prompt_ids)
        self.length = self.prompt_length  # tokens known: prompt and generated
        self.computed = 0  # of these, tokens whose keys and values are in the cache
        self.blocks: list[int] = []  # the cache's pages in order; set by the scheduler
        self.cache: object | None = None  # the runner's own, dropped together with the blocks
        self.started = 0.0  # time.monotonic() of the first step; set by the stepper
        self.prompt_logprobs: list[float] = []  # of prompt tokens 1.. so far; set by the stepper
        self.prompt_top: list[TopTokens] = []  # beside them
        self.held: object | None = None  # its row of logits until its mask comes; set by the sampler
        self._ids: TokenIds = np.empty(self.prompt_length + request.max_new_tokens, dtype=np.int64)
        self._ids[: self.prompt_length] = request.prompt_ids

    @property
    def id(self) -> str:
        """Return the request's id."""
        return self.request.id

    @property
    def ids(self) -> TokenIds:
        """Return the tokens known so far, a view of shape (length,)."""
        return self._ids[: self.length]

    @property
    def generated(self) -> int:
        """Return how many tokens were generated."""
        return self.length - self.prompt_length

    @property
    def remaining(self) -> int:
        """Return how many known tokens have no keys and values yet."""
        return self.length - self.computed

    @property
    def has_mask(self) -> bool:
        """Return whether its next token can be chosen as soon as its logits are there."""
        return self.guide is None or self.guide.ready

    @property
    def hides_eos(self) -> bool:
        """Return whether its next token may not be EOS if it can be anything else."""
        # A grammar knows no EOS in the middle of a text
        ignored = self.request.ignore_eos and self.guide is not None
        return ignored or self.generated < self.request.min_new_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Return whether prompt log-probabilities were asked for and not sent yet."""
        return self.request.prompt_logprobs and self.generated == 0

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self._ids[self.length] = token_id
        self.length += 1
        self.held = None

    def forget_computed(self) -> None:
        """Go back to nothing computed, as a preempted sequence does."""
        self.computed = 0
        self.blocks = []
        self.cache = None
        self.prompt_logprobs = []
        self.prompt_top = []
        self.held = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens [start, stop) of one sequence, computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return how many tokens are computed."""
        return self.stop - self.start

    @property
    def decodes(self) -> bool:
        """Return whether the chunk is one generated token, not a part of a prompt."""
        return self.start >= self.sequence.prompt_length and self.size == 1

    @property
    def samples(self) -> bool:
        """Return whether the step gives the sequence its next token."""
        return self.stop == self.sequence.length

    @property
    def logit_rows(self) -> int:
        """Return how many of the chunk's positions, counted from its end, need logits."""
        return self.size if self.sequence.wants_prompt_logprobs else int(self.samples)


@dataclass(frozen=True, slots=True)
class Work:
    """Of what one step chooses tokens: the chunks' logits, and rows that were held until now."""

    chunks: tuple[Chunk, ...] = ()
    late: frozenset[Sequence] = frozenset()  # of them, whose row is to be held: its mask isn't there yet
    resumed: tuple[Sequence, ...] = ()  # whose row was held, and whose mask has come

    @property
    def sequences(self) -> list[Sequence]:
        """Return all of them: the chunks' in order, then the resumed ones."""
        return [*(chunk.sequence for chunk in self.chunks), *self.resumed]


@dataclass(frozen=True, slots=True)
class Choice:
    """The sampler's answer for one sequence."""

    token_id: int
    logprob: float
    top: TopTokens = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """All that a step's logits say of one sequence."""

    prompt_logprobs: tuple[float, ...] = ()  # of the prompt tokens start + 1 .. stop
    prompt_top: tuple[TopTokens, ...] = ()  # the likeliest at their places, if asked for
    choice: Choice | None = None  # None: no token yet
    failure: str | None = None  # why there can't be one
