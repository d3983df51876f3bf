"""What the soak takes for the same."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak_run import said
from inference.frontend.prompt_tokens import LikelyTokens, PromptTokens
from inference.types import Event, PromptToken, Token


def likely(logprob: float) -> LikelyTokens:
    def make(pairs: tuple[tuple[int, float], ...]) -> tuple[Token, ...]:
        return tuple(Token(id, str(id), each, False) for id, each in pairs)

    return LikelyTokens(np.array([7], np.int32), np.array([logprob], np.float32), make)


def event(logprob: float, top: float) -> Event:
    token = Token(3, "3", -1.0, False)
    columns = PromptTokens([1, 2], [None, logprob], None, str, lambda _: ())
    return Event(1, token, (), "3", prompt=[*columns, PromptToken(4, "4", -2.0, likely(top))])


def test_a_prompt_that_says_the_same_is_the_same_whoever_made_it() -> None:
    assert said(event(-0.5, -1.5), exact=True) == said(event(-0.5, -1.5), exact=True)
    here, there = (PromptTokens([1], [None], None, str, lambda _: ()) for _ in range(2))
    assert here != there  # they are looked at where it matters, and nobody else compares them
    assert list(here) == list(there)


@pytest.mark.parametrize("other", [(-0.6, -1.5), (-0.5, -1.6)])
def test_a_prompt_with_another_log_probability_is_another(other: tuple[float, float]) -> None:
    assert said(event(*other), exact=True) != said(event(-0.5, -1.5), exact=True)
    assert said(event(*other), exact=False) == said(event(-0.5, -1.5), exact=False)
