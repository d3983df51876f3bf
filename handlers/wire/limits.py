"""What the server's settings say about requests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from inference.grammar_limits import SOURCE_BYTES, GrammarLimits
from inference.types import Watermark

OPENAI_TOP_LOGPROBS = 20  # OpenAI's own limit of `top_logprobs` in chats
OPENAI_LOGPROBS = 5  # and of `logprobs` in text completions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for, and how the mark looks; set from the settings of the same names."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_n: int = 16
    grammar_support: bool = True
    max_grammar_size: int = SOURCE_BYTES
    prefill_logprobs: bool = False
    adapters: Collection[str] = ()  # that `model` can name
    watermark: Watermark = field(default_factory=Watermark)

    @property
    def of_schema(self) -> GrammarLimits:
        """Return the limits of one schema."""
        return GrammarLimits(source_bytes=self.max_grammar_size)

    @property
    def max_top_logprobs(self) -> int:
        """Return how many alternatives a chat gives for each token."""
        return max(OPENAI_TOP_LOGPROBS, self.max_top_n_tokens)

    @property
    def max_logprobs(self) -> int:
        """Return how many alternatives a text completion gives for each token."""
        return max(OPENAI_LOGPROBS, self.max_top_n_tokens)
