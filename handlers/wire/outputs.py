"""What the engine gave for one request, whichever dialect tells it."""

from __future__ import annotations

from collections.abc import Sequence

from inference.types import Event, Finish, Request

Output = tuple[Event, ...]  # all events of one request; the last one has its `finish`


def finish_of(output: Sequence[Event]) -> Finish:
    """Return what is known of an output at its end."""
    finish = output[-1].finish
    assert finish is not None, "the last event of a generation has its finish"
    return finish


def values_of(output: Sequence[Event], request: Request) -> int:
    """Return about how many tokens there are to tell, a prompt's and all alternatives counted."""
    prompt = len(output[0].prompt) * (1 + request.prompt_top_n_tokens) if output else 0
    return prompt + len(output) * (1 + request.top_n_tokens)


def mean_logprob(output: Output) -> float:
    """Return how likely the tokens of an output are on average, by which the best of several is chosen.

    Its request's log-probabilities are not LogprobsMode.NONE.
    """
    return sum(event.token.logprob for event in output) / len(output)
