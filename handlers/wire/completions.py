"""OpenAI's text completions: what a body asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from handlers.wire.grammar import allowed
from handlers.wire.guided import to_guided
from handlers.wire.images import ImageUrl, to_sighted
from handlers.wire.limits import Limits
from handlers.wire.openai import continuous_usage, include_usage, to_choices, to_parameters
from handlers.wire.parameters import LEAST, MOST, Draw, Parameters, check, samplings
from handlers.wire.requests import grammar_or_refusal, numbered, to_request
from handlers.wire.types import CompletionRequest
from handlers.wire.types import Prompt as WirePrompt
from inference.errors import InvalidInput, Member
from inference.types import Image, LogprobsMode, Request, VisionInfo

Ids = tuple[int, ...]

EMPTY_PROMPT = "Empty array detected. Do not use an empty array for the prompt."


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue."""

    text: str  # with the model's mark in the place of each image
    ids: Ids | None = None  # as given in place of the text
    image_urls: tuple[ImageUrl, ...] = ()


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

    def with_images(self, images: Sequence[tuple[Image, ...]]) -> Completion:
        """Return the same with the images of each prompt."""
        requests = (
            replace(request, images=found)
            for of_prompt, found in zip(self.by_prompt, images, strict=True)
            for request in of_prompt
        )
        return replace(self, requests=tuple(requests))

    @property
    def by_prompt(self) -> tuple[tuple[Request, ...], ...]:
        """Return the requests of each prompt."""
        starts = range(0, len(self.requests), self.candidates)
        return tuple(self.requests[at : at + self.candidates] for at in starts)


def to_asked(body: CompletionRequest, limits: Limits) -> Asked:
    """Return how much is asked for; raise InvalidInput for what can't be, or not as a stream."""
    n = to_choices(body, limits)
    best_of = body.get("best_of")
    candidates = n if best_of is None else best_of
    if not 1 <= candidates <= limits.max_n:
        raise InvalidInput(Member("best_of"), f" must be > 0 and <= {limits.max_n}. Given: {candidates}")
    if candidates < n:
        raise InvalidInput(Member("best_of"), f" must be >= `n`. Given: {candidates} and {n}")
    if candidates > n and body.get("stream"):
        raise InvalidInput(Member("best_of"), " > `n` is not supported when streaming tokens")
    return Asked(n=n, candidates=candidates, prompts=_prompts(body["prompt"]))


def to_prompts(given: Sequence[str | Prompt], vision: VisionInfo | None) -> list[Prompt]:
    """Return prompts with the images of their texts taken out, as `vision` says that prompts have them."""
    return [
        _to_prompt(prompt, vision, f"prompt[{at}]" if len(given) > 1 else "prompt")
        if isinstance(prompt, str)
        else prompt
        for at, prompt in enumerate(given)
    ]


def to_completion(
    body: CompletionRequest,
    asked: Asked,
    prompts: Sequence[Prompt],
    limits: Limits,
    *,
    id: str,
    draw: Draw,
    logprobs: LogprobsMode = LogprobsMode.RAW,
) -> Completion:
    """Understand a body; raise InvalidInput with the message of the first check that fails.

    `logprobs`: which are told, if any are, and rank the candidates, if there are more than answers.
    """
    echo, top = bool(body.get("echo")), body.get("logprobs")
    scored = echo and body.get("max_tokens") == 0
    parameters = _parameters(body, limits, scored=scored)
    if top is not None and top > limits.max_logprobs:
        raise InvalidInput(Member("logprobs"), f" must be >= 0 and <= {limits.max_logprobs}. Given: {top}")
    form = grammar_or_refusal(lambda: allowed(to_guided(body), limits))
    mode = LogprobsMode.NONE if top is None and asked.candidates == asked.n else logprobs
    requests = (
        replace(
            to_request(parameters, id=id, prompt=prompt.text, logprobs=mode),
            prompt_ids=prompt.ids,
            sampling=sampling,
            grammar=None if scored else form,
            top_n_tokens=0 if scored else top or 0,
            prompt_logprobs=echo and top is not None,
            prompt_top_n_tokens=(top or 0) if echo else 0,
        )
        for prompt in prompts
        for sampling in samplings(parameters, draw, asked.candidates)
    )
    return Completion(
        requests=numbered(requests),
        n=asked.n,
        candidates=asked.candidates,
        echo=echo,
        logprobs=top,
        scored=scored,
        stream=bool(body.get("stream")),
        include_usage=include_usage(body),
        continuous_usage=continuous_usage(body),
    )


def _parameters(body: CompletionRequest, limits: Limits, *, scored: bool) -> Parameters:
    """Return the parameters; where a prompt is scored, those of the one token that isn't told."""
    if not scored:
        parameters = to_parameters(body, body.get("max_tokens"), limits)
        check(parameters, limits)
        return parameters
    shortest: CompletionRequest = {**body, "min_tokens": None}  # else held against the 1, which nobody gave
    parameters = to_parameters(shortest, 1, limits)
    check(parameters, limits)
    if least := body.get("min_tokens"):
        raise InvalidInput(LEAST, " must be <= ", MOST, f". Given: {least} and 0")
    return parameters


def _to_prompt(text: str, vision: VisionInfo | None, where: str) -> Prompt:
    sighted = to_sighted(text, vision, where)
    return Prompt(sighted.text, image_urls=sighted.images)


def _prompts(given: WirePrompt) -> tuple[str | Ids, ...]:
    """Return the prompts as they are given: one text or several, the ids of one prompt or of several."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidInput(EMPTY_PROMPT)
    if isinstance(given[0], int):
        return (tuple(given),)
    if [] in given:
        raise InvalidInput(Member("inputs"), " cannot be empty")
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)
