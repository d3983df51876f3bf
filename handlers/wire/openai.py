"""What OpenAI's routes have in common: sampling, finish reasons, usage, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from handlers.wire.limits import Limits
from handlers.wire.parameters import Parameters, all_shortest, several, single
from handlers.wire.types import (
    ChatCompletionLogprob,
    ChatCompletionLogprobs,
    ChatCompletionTopLogprob,
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    ResponsesRequest,
    Usage,
)
from inference.errors import InvalidInput, Member
from inference.types import Event, Finish, FinishReason, PromptToken, Token

Body: TypeAlias = ChatRequest | CompletionRequest
Reason: TypeAlias = Literal["stop", "length"]
TokenBytes = Sequence[bytes]

IMPOSSIBLE = -9999.0  # OpenAI's log-probability of what has no probability
FINISH_REASONS: Mapping[FinishReason, Reason] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every body and chunk of one answer repeats."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str


def to_parameters(
    body: Body | ResponsesRequest | MessagesRequest, max_tokens: int | None, limits: Limits
) -> Parameters:
    """Return the parameters that all of its routes know; OpenAI samples unless `temperature` is 0.

    As in TGI, `model` names an adapter if there is one of that name, and else the model itself.
    """
    model = body.get("model")
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
        min_p=single(body.get("min_p")),
        do_sample=not greedy,
        greedy=greedy,
        max_new_tokens=max_tokens,
        min_new_tokens=body.get("min_tokens"),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=several(body.get("stop")),
        seed=body.get("seed"),
        logit_bias=body.get("logit_bias"),
        cache_salt=body.get("cache_salt"),
        adapter=model if model in limits.adapters else None,
    )


def to_choices(body: Body, limits: Limits) -> int:
    """Return how many texts are asked for each prompt; raise InvalidInput if that's none or too many."""
    n = body.get("n")
    if n is not None and not 1 <= n <= limits.max_n:
        raise InvalidInput(Member("n"), f" must be > 0 and <= {limits.max_n}. Given: {n}")
    return 1 if n is None else n


def include_usage(body: Body) -> bool:
    """Return whether a stream is to end with a chunk of its usage."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def continuous_usage(body: Body) -> bool:
    """Return whether every chunk of a stream is to have the counts so far."""
    return bool((body.get("stream_options") or {}).get("continuous_usage_stats"))


def idle_options(body: Body) -> tuple[str, ...]:
    """Return what is asked of a stream where none is: `stream_options`, or nothing."""
    asked = include_usage(body) or continuous_usage(body)
    return ("stream_options",) if asked and not body.get("stream") else ()


def finish_reason(event: Event) -> Reason | None:
    """Return OpenAI's word for why the text ended with this event, None if it goes on."""
    return None if event.finish is None else end_reason(event.finish)


def end_reason(finish: Finish) -> Reason:
    """Return OpenAI's word for why a text ended, which has no stop sequence."""
    return FINISH_REASONS[finish.reason_before_stop]


def usage(finishes: Iterable[Finish], choices: int = 1) -> Usage:
    """Return the token counts of an answer, summed over its sequences.

    Each `choices` that follow each other continue the same prompt, which is counted once.
    """
    finishes = tuple(finishes)
    prompts = finishes[::choices]
    counts = counted_so_far(
        sum(finish.prompt_tokens for finish in prompts), sum(finish.generated_tokens for finish in finishes)
    )
    return counts | {"prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)}}


def counted_so_far(prompt: int, completion: int) -> Usage:
    """Return token counts while an answer goes on, when it isn't known yet how many were cached."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def logprobs(
    events: Sequence[Event], top: int, token_bytes: TokenBytes | None = None
) -> ChatCompletionLogprobs:
    """Return the log-probabilities of tokens with the `top` likeliest ones at each place.

    More than `top` tokens can be equally likely; OpenAI gives no more than asked for. `token_bytes` has the
    bytes of each token by its id: a part of a character has no text of its own.
    """
    told = [(event.token, event.top_tokens[:top]) for event in events]
    numbers = iter(all_shortest([each.logprob for token, others in told for each in (token, *others)]))
    content: list[ChatCompletionLogprob] = [
        {
            **_token(token, next(numbers), token_bytes),
            "top_logprobs": [_token(other, next(numbers), token_bytes) for other in others],
        }
        for token, others in told
    ]
    return {"content": content, "refusal": None}


def _token(token: Token, logprob: float | None, token_bytes: TokenBytes | None) -> ChatCompletionTopLogprob:
    return {
        "token": own_text(token, token_bytes),
        "logprob": IMPOSSIBLE if logprob is None else logprob,
        "bytes": list(own_bytes(token, token_bytes) or token.text.encode()),
    }


def own_text(token: Token | PromptToken, token_bytes: TokenBytes | None) -> str:
    """Return a token's text whatever stands before it, so that one token is written alike wherever it's told.

    A part of a character is written as OpenAI does, by its bytes: `\\xe6`.
    """
    known = own_bytes(token, token_bytes)
    return known.decode("utf-8", "backslashreplace") if known else token.text


def own_bytes(token: Token | PromptToken, token_bytes: TokenBytes | None) -> bytes:
    """Return what a token adds to the UTF-8 of a text; empty for special tokens, and where it isn't known."""
    special = isinstance(token, Token) and token.special
    return b"" if special or token_bytes is None or token.id >= len(token_bytes) else token_bytes[token.id]
