"""OpenAI's chat completions: the body, and the answer whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handlers.wire.limits import Limits
from handlers.wire.messages import to_template
from handlers.wire.openai import Stamp, finish_reason, include_usage, logprobs, to_parameters, usage
from handlers.wire.parameters import Draw, Parameters, check, sampling
from inference.errors import InvalidInput
from inference.types import Event, Finish, LogprobsMode, Messages, Request

Body = Mapping[str, Any]
Json = dict[str, Any]

MODEL_CHARACTERS = 1024  # of a name that is echoed in every chunk of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A body understood, but for its prompt, which the chat template has to make."""

    messages: Messages
    parameters: Parameters
    model: str | None  # to echo; None for the served one
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int


def to_chat(body: Body, limits: Limits) -> Chat:
    """Understand a chat body; raise InvalidInput with the message of the first check that fails."""
    wanted = bool(body.get("logprobs"))
    top = body.get("top_logprobs") or 0
    if top > limits.max_top_logprobs:
        raise InvalidInput(f"`top_logprobs` must be >= 0 and <= {limits.max_top_logprobs}. Given: {top}")
    parameters = to_parameters(body, _max_tokens(body))
    check(parameters, limits)
    return Chat(
        messages=to_template(body["messages"]),
        parameters=parameters,
        model=echoed(body.get("model")),
        stream=bool(body.get("stream")),
        include_usage=include_usage(body),
        logprobs=wanted,
        top_logprobs=top if wanted else 0,
    )


def to_request(
    chat: Chat, prompt: str, *, id: str, draw: Draw, logprobs: LogprobsMode = LogprobsMode.RAW
) -> Request:
    """Return the request for the rendered messages; the template brings its own special tokens."""
    return Request(
        id=id,
        prompt=prompt,
        add_special_tokens=False,
        max_new_tokens=chat.parameters.max_new_tokens,
        stop=chat.parameters.stop,
        sampling=sampling(chat.parameters, draw),
        logprobs=logprobs,
        top_n_tokens=chat.top_logprobs,
    )


def echoed(model: str | None) -> str | None:
    """Return the model's name to answer with; None where the served model's own is meant.

    Raises InvalidInput for a name that would swell every chunk of a stream.
    """
    if model is not None and len(model) > MODEL_CHARACTERS:
        raise InvalidInput(f"`model` must have at most {MODEL_CHARACTERS} characters. Given: {len(model)}")
    return None if model is None or model == "tgi" else model


def to_body(chat: Chat, stamp: Stamp, events: tuple[Event, ...]) -> Json:
    """Return the whole answer."""
    finish = events[-1].finish
    assert finish is not None, "the last event of a generation has its finish"
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": finish.text_before_stop, "refusal": None},
        "logprobs": logprobs(events, chat.top_logprobs) if chat.logprobs else None,
        "finish_reason": finish_reason(events[-1]),
    }
    return _frame(stamp, "chat.completion", [choice], usage([finish]))


def to_chunk(chat: Chat, stamp: Stamp, event: Event) -> Json:
    """Return the chunk of one token; each carries the role, as TGI's do."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": event.delta},
        "logprobs": logprobs([event], chat.top_logprobs) if chat.logprobs else None,
        "finish_reason": finish_reason(event),
    }
    return _frame(stamp, "chat.completion.chunk", [choice], None)


def to_usage_chunk(stamp: Stamp, finish: Finish) -> Json:
    """Return the chunk after the last token that has nothing but the usage."""
    return _frame(stamp, "chat.completion.chunk", [], usage([finish]))


def _max_tokens(body: Body) -> int | None:
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidInput(
            f"`max_tokens` is {old} and `max_completion_tokens` is {new}: they mean the same, give one"
        )
    return old if new is None else new


def _frame(stamp: Stamp, kind: str, choices: list[Json], counts: Json | None) -> Json:
    return {
        "object": kind,
        "id": stamp.id,
        "created": stamp.created,
        "model": stamp.model,
        "system_fingerprint": stamp.fingerprint,
        "choices": choices,
        "usage": counts,
    }
