"""OpenAI's text completions: the body, and the answer whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from handlers.wire.limits import Limits
from handlers.wire.openai import (
    Stamp,
    continuous_usage,
    include_usage,
    to_choices,
    to_parameters,
    usage,
)
from handlers.wire.parameters import Draw, check, samplings
from handlers.wire.tgi import Output, mean_logprob, numbered
from inference.errors import InvalidInput
from inference.types import Finish, FinishReason, LogprobsMode, Request

Body = Mapping[str, Any]
Json = dict[str, Any]
Ids = tuple[int, ...]

EMPTY_PROMPT = "Empty array detected. Do not use an empty array for the prompt."


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue."""

    text: str
    ids: Ids | None = None  # as given in place of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How much a body asks for: what is known of it before there is room for it."""

    n: int  # answers to each prompt
    candidates: int  # texts that these are the best of
    prompts: tuple[str | Ids, ...]

    @property
    def sequences(self) -> int:
        """Return how many places in the engine that takes."""
        return self.candidates * len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A body understood."""

    requests: tuple[Request, ...]  # one prompt's candidates after another's
    n: int
    candidates: int
    echo: bool
    logprobs: int | None
    scored: bool  # the prompt is what is asked about: the one token that is generated isn't told
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def prompts(self) -> tuple[str, ...]:
        """Return the texts of the prompts."""
        return tuple(request.prompt for request in self.requests[:: self.candidates])


def to_asked(body: Body, limits: Limits) -> Asked:
    """Return how much is asked for; raise InvalidInput for what can't be, or not as a stream."""
    n = to_choices(body, limits)
    best_of = body.get("best_of")
    candidates = n if best_of is None else best_of
    if not 1 <= candidates <= limits.max_n:
        raise InvalidInput(f"`best_of` must be > 0 and <= {limits.max_n}. Given: {candidates}")
    if candidates < n:
        raise InvalidInput(f"`best_of` must be >= `n`. Given: {candidates} and {n}")
    if candidates > n and body.get("stream"):
        raise InvalidInput("`best_of` > `n` is not supported when streaming tokens")
    if body.get("stream") and body.get("echo") and body.get("logprobs") is not None:
        raise InvalidInput("`echo` with `logprobs` is not supported when streaming tokens")
    return Asked(n=n, candidates=candidates, prompts=_prompts(body["prompt"]))


def to_completion(
    body: Body,
    asked: Asked,
    prompts: Sequence[Prompt],
    limits: Limits,
    *,
    id: str,
    draw: Draw,
    logprobs: LogprobsMode = LogprobsMode.RAW,
) -> Completion:
    """Understand a body; raise InvalidInput with the message of the first check that fails."""
    echo, top = bool(body.get("echo")), body.get("logprobs")
    scored = echo and body.get("max_tokens") == 0
    parameters = to_parameters(body, 1 if scored else body.get("max_tokens"))
    check(parameters, limits)
    if top is not None and top > limits.max_logprobs:
        raise InvalidInput(f"`logprobs` must be >= 0 and <= {limits.max_logprobs}. Given: {top}")
    names = iter(numbered(id, asked.sequences))
    requests = tuple(
        Request(
            id=next(names),
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            max_new_tokens=parameters.max_new_tokens,
            min_new_tokens=parameters.min_new_tokens or 0,
            ignore_eos=parameters.ignore_eos,
            stop=parameters.stop,
            sampling=sampling,
            logprobs=logprobs,
            top_n_tokens=top or 0,
            prompt_logprobs=echo and top is not None,
        )
        for prompt in prompts
        for sampling in samplings(parameters, draw, asked.candidates)
    )
    return Completion(
        requests=requests,
        n=asked.n,
        candidates=asked.candidates,
        echo=echo,
        logprobs=top,
        scored=scored,
        stream=bool(body.get("stream")),
        include_usage=include_usage(body),
        continuous_usage=continuous_usage(body),
    )


def best(completion: Completion, outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return the `n` of each prompt's outputs that are answered with: the likeliest, if there are more."""
    n, candidates = completion.n, completion.candidates
    if n == candidates:
        return tuple(outputs)
    groups = (outputs[at : at + candidates] for at in range(0, len(outputs), candidates))
    return tuple(output for group in groups for output in sorted(group, key=mean_logprob, reverse=True)[:n])


def without_text(finish: Finish) -> Finish:
    """Return the finish of a request that only its prompt was looked at."""
    return replace(finish, reason=FinishReason.LENGTH, text="", text_before_stop="", generated_tokens=0)


def usage_of(completion: Completion, finishes: Sequence[Finish]) -> Json:
    """Return the token counts of all sequences; a prompt counts once, and each candidate was generated."""
    told = [without_text(finish) for finish in finishes] if completion.scored else finishes
    return usage(told, completion.candidates)


def frame(stamp: Stamp, choices: Sequence[Json], counts: Json | None) -> Json:
    """Return a whole answer or a chunk of one."""
    body: Json = {
        "object": "text_completion",
        "id": stamp.id,
        "created": stamp.created,
        "choices": choices,
        "model": stamp.model,
        "system_fingerprint": stamp.fingerprint,
    }
    return body if counts is None else body | {"usage": counts}


def choice(index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
    """Return a choice; while it goes on its reason is the empty string, which TGI's typed clients expect."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason or ""}


def _prompts(given: str | Sequence[Any]) -> tuple[str | Ids, ...]:
    """Return the prompts as they are given: one text or several, the ids of one prompt or of several."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidInput(EMPTY_PROMPT)
    if isinstance(given[0], int):
        return (tuple(given),)
    if [] in given:
        raise InvalidInput("`inputs` cannot be empty")
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)
