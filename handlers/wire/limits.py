"""The limits that requests are held against."""

from __future__ import annotations

from dataclasses import dataclass

OPENAI_TOP_LOGPROBS = 20  # OpenAI's own limit of `top_logprobs`


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for; set from the settings of the same names."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int

    @property
    def max_top_logprobs(self) -> int:
        """Return how many alternatives OpenAI's routes give for each token."""
        return max(OPENAI_TOP_LOGPROBS, self.max_top_n_tokens)
