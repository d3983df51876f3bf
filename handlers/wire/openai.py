"""What OpenAI's two routes have in common: sampling, finish reasons, usage, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handlers.wire.parameters import Parameters, several, shortest, single
from inference.types import Event, Finish, FinishReason, Token

Body = Mapping[str, Any]
Json = dict[str, Any]

IMPOSSIBLE = -9999.0  # OpenAI's log-probability of what has no probability
FINISH_REASONS = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every body and chunk of one answer repeats."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str


def to_parameters(body: Body, max_tokens: int | None) -> Parameters:
    """Return the parameters that both routes know; OpenAI samples unless `temperature` is 0."""
    temperature = single(body.get("temperature"))
    greedy = temperature == 0
    top_k = body.get("top_k")
    return Parameters(
        temperature=None if greedy else temperature,
        repetition_penalty=single(body.get("repetition_penalty")),
        frequency_penalty=single(body.get("frequency_penalty")),
        presence_penalty=single(body.get("presence_penalty")),
        top_k=None if top_k in (0, -1) else top_k,  # how other servers' clients say that all tokens stay
        top_p=single(body.get("top_p")),
        typical_p=single(body.get("typical_p")),
        do_sample=not greedy,
        greedy=greedy,
        max_new_tokens=max_tokens,
        stop=several(body.get("stop")),
        seed=body.get("seed"),
    )


def include_usage(body: Body) -> bool:
    """Return whether a stream is to end with a chunk of its usage."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def finish_reason(event: Event) -> str | None:
    """Return OpenAI's word for why the text ended with this event, None if it goes on."""
    return None if event.finish is None else FINISH_REASONS[event.finish.reason]


def usage(finishes: Iterable[Finish]) -> Json:
    """Return the token counts of an answer, summed over its sequences."""
    finishes = tuple(finishes)
    prompt = sum(finish.prompt_tokens for finish in finishes)
    completion = sum(finish.generated_tokens for finish in finishes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(finish.cached_tokens for finish in finishes)},
    }


def logprobs(events: Sequence[Event], top: int) -> Json:
    """Return the log-probabilities of tokens with the `top` likeliest ones at each place.

    More than `top` tokens can be equally likely; OpenAI gives no more than asked for.
    """
    content = [
        _token(event.token) | {"top_logprobs": [_token(token) for token in event.top_tokens[:top]]}
        for event in events
    ]
    return {"content": content, "refusal": None}


def _token(token: Token) -> Json:
    logprob = shortest(token.logprob)
    return {
        "token": token.text,
        "logprob": IMPOSSIBLE if logprob is None else logprob,
        "bytes": list(token.text.encode()),
    }
