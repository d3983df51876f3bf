"""OpenAI's text completions: the body, and the answer whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp, finish_reason, include_usage, to_parameters, usage
from handlers.wire.parameters import Draw, check, sampling
from handlers.wire.tgi import Output, finish_of, numbered
from inference.errors import InvalidInput
from inference.types import Event, Finish, LogprobsMode, Request

Body = Mapping[str, Any]
Json = dict[str, Any]

EMPTY_PROMPT = "Empty array detected. Do not use an empty array for the prompt."


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A body understood: one request per prompt."""

    requests: tuple[Request, ...]
    stream: bool
    include_usage: bool


def prompts(body: Body) -> tuple[str, ...]:
    """Return the texts to continue; raise InvalidInput if there is none, or token ids in place of text."""
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise InvalidInput(EMPTY_PROMPT)
    if not all(isinstance(text, str) for text in prompt):
        raise InvalidInput("`prompt` is given as token ids, which is not supported yet: send it as text")
    return tuple(prompt)


def to_completion(body: Body, limits: Limits, *, id: str, draw: Draw) -> Completion:
    """Understand a body; raise InvalidInput with the message of the first check that fails."""
    parameters = to_parameters(body, body.get("max_tokens"))
    texts = prompts(body)
    check(parameters, limits)
    return Completion(
        requests=tuple(
            Request(
                id=name,
                prompt=text,
                max_new_tokens=parameters.max_new_tokens,
                stop=parameters.stop,
                sampling=sampling(parameters, draw),
                logprobs=LogprobsMode.RAW,
            )
            for name, text in zip(numbered(id, len(texts)), texts, strict=True)
        ),
        stream=bool(body.get("stream")),
        include_usage=include_usage(body),
    )


def to_body(stamp: Stamp, outputs: Sequence[Output]) -> Json:
    """Return the whole answer, one choice per prompt in their order."""
    choices = [
        _choice(index, finish_of(events).text_before_stop, finish_reason(events[-1]))
        for index, events in enumerate(outputs)
    ]
    return _frame(stamp, choices, usage(finish_of(events) for events in outputs))


def to_chunk(stamp: Stamp, index: int, event: Event) -> Json:
    """Return the chunk of one token of the prompt `index`; the prompt's last chunk has its usage."""
    choice = _choice(index, event.delta, finish_reason(event))
    return _frame(stamp, [choice], None if event.finish is None else usage([event.finish]))


def to_usage_chunk(stamp: Stamp, finishes: Sequence[Finish]) -> Json:
    """Return the chunk after the last token that has nothing but the usage of all prompts."""
    return _frame(stamp, [], usage(finishes))


def _choice(index: int, text: str, reason: str | None) -> Json:
    """Return a choice; while it goes on its reason is the empty string, which TGI's typed clients expect."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason or ""}


def _frame(stamp: Stamp, choices: list[Json], counts: Json | None) -> Json:
    body: Json = {
        "object": "text_completion",
        "id": stamp.id,
        "created": stamp.created,
        "choices": choices,
        "model": stamp.model,
        "system_fingerprint": stamp.fingerprint,
    }
    return body if counts is None else body | {"usage": counts}
