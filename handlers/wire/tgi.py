"""TGI's own dialect: what a body asks for, and how generated tokens are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from handlers.wire.grammar import allowed, to_grammar
from handlers.wire.images import ImageUrl, to_sighted
from handlers.wire.limits import Limits
from handlers.wire.outputs import Output, finish_of, mean_logprob
from handlers.wire.parameters import Draw, Parameters, check, samplings, several, shortest, single
from handlers.wire.requests import Wanted, grammar_or_refusal, numbered, to_request
from handlers.wire.types import (
    BestOfSequence,
    CompatGenerateRequest,
    Details,
    GenerateInstance,
    GenerateParameters,
    GenerateRequest,
    GenerateResponse,
    KserveInferRequest,
    PrefillToken,
    StreamDetails,
    StreamResponse,
)
from handlers.wire.types import Token as WireToken
from inference.errors import InvalidInput, Member
from inference.types import (
    Event,
    Finish,
    Image,
    LogprobsMode,
    PromptToken,
    Request,
    Token,
    VisionInfo,
)

Body: TypeAlias = GenerateRequest | CompatGenerateRequest | GenerateInstance


class Shown(Enum):
    """When an answer shows the tokens of its texts, and how likely they were."""

    ALWAYS = "always"  # in a stream
    WITH_DETAILS = "with details"
    NEVER = "never"  # it has texts, and counts at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """A body understood: one request per candidate of `best_of`, and what the answer is to show."""

    requests: tuple[Request, ...]
    details: bool
    return_full_text: bool
    inputs: str  # as they were given
    image_urls: tuple[ImageUrl, ...] = ()  # that stand in them
    without_effect: tuple[str, ...] = ()  # members that would have one beside others only

    def with_images(self, images: tuple[Image, ...]) -> Generate:
        """Return the same with what is at its `image_urls`."""
        return replace(self, requests=tuple(replace(each, images=images) for each in self.requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the parameters of a body ask for, whatever the prompt."""

    parameters: Parameters
    grammar: Wanted
    prompt_logprobs: bool
    logprobs: LogprobsMode
    details: bool
    return_full_text: bool
    without_effect: tuple[str, ...]  # see `Generate`

    def of(self, prompt: str, *, id: str, draw: Draw, vision: VisionInfo | None = None) -> Generate:
        """Return what is asked for of a prompt; `vision`: how the model's prompts have images, if they do."""
        sighted = to_sighted(prompt, vision, "inputs")
        request = replace(
            to_request(self.parameters, id=id, prompt=sighted.text, logprobs=self.logprobs),
            grammar=self.grammar,
            prompt_logprobs=self.prompt_logprobs,
        )
        candidates = samplings(self.parameters, draw, self.parameters.candidates)
        return Generate(
            requests=numbered(replace(request, sampling=sampling) for sampling in candidates),
            details=self.details,
            return_full_text=self.return_full_text,
            inputs=prompt,
            image_urls=sighted.images,
            without_effect=self.without_effect,
        )


def sequences(body: Body | KserveInferRequest, limits: Limits, *, stream: bool) -> int:
    """Return how many places in the engine the body takes; raise InvalidInput for what TGI refuses first."""
    parameters = body.get("parameters") or {}
    best_of = parameters.get("best_of")
    if best_of is None:
        best_of = 1
    if stream and best_of != 1:
        raise InvalidInput(Member("best_of"), " != 1 is not supported when streaming tokens")
    if stream and parameters.get("decoder_input_details"):
        raise InvalidInput(Member("decoder_input_details"), " == true is not supported when streaming tokens")
    if best_of > 1 and limits.max_best_of == 1:
        raise InvalidInput(Member("best_of"), " != 1 is not allowed for this endpoint")
    if not 1 <= best_of <= limits.max_best_of:
        raise InvalidInput(Member("best_of"), f" must be > 0 and <= {limits.max_best_of}. Given: {best_of}")
    return best_of


def to_generate(
    body: Body,
    limits: Limits,
    *,
    id: str,
    draw: Draw,
    full_text: bool = False,
    do_sample: bool = False,
    logprobs: LogprobsMode = LogprobsMode.PROCESSED,
    tokens: Shown = Shown.ALWAYS,
    vision: VisionInfo | None = None,
) -> Generate:
    """Understand a body that `sequences` let pass; see `to_meaning`."""
    meaning = to_meaning(
        body.get("parameters"),
        limits,
        full_text=full_text,
        do_sample=do_sample,
        logprobs=logprobs,
        tokens=tokens,
    )
    return meaning.of(body["inputs"], id=id, draw=draw, vision=vision)


def to_meaning(
    given: GenerateParameters | None,
    limits: Limits,
    *,
    full_text: bool = False,
    do_sample: bool = False,
    logprobs: LogprobsMode = LogprobsMode.PROCESSED,
    tokens: Shown = Shown.ALWAYS,
) -> Meaning:
    """Understand the parameters of a body that `sequences` let pass.

    `full_text` and `do_sample` are what an absent `return_full_text` and `do_sample` mean; without any
    parameters at all TGI samples. Of `logprobs` nothing is computed if neither the answer nor `best_of`
    needs any, nor of `top_n_tokens` if the answer doesn't show them. Raises InvalidInput with TGI's message
    of the first check that fails.
    """
    given = {"do_sample": True} if given is None else given
    parameters = _parameters(given, limits, do_sample)
    check(parameters, limits)
    prefill, wanted = bool(given.get("decoder_input_details")), given.get("return_full_text")
    details = prefill or bool(given.get("details"))
    prompt_logprobs = prefill and limits.prefill_logprobs and tokens is not Shown.NEVER
    shown = tokens is Shown.ALWAYS or (tokens is Shown.WITH_DETAILS and details)
    needed = shown or parameters.candidates > 1 or prompt_logprobs
    unseen = bool(parameters.top_n_tokens) and not shown
    return Meaning(
        parameters=replace(parameters, top_n_tokens=None) if unseen else parameters,
        grammar=_grammar(given, limits),
        prompt_logprobs=prompt_logprobs,
        logprobs=logprobs if needed else LogprobsMode.NONE,
        details=details,
        return_full_text=full_text if wanted is None else wanted,
        without_effect=("parameters.top_n_tokens",) if unseen else (),
    )


def winner_first(outputs: Sequence[Output]) -> tuple[int, ...]:
    """Return the places of outputs, in front that of the one with the highest mean log-probability."""
    places = range(len(outputs))
    if len(outputs) == 1:  # whose log-probabilities may mean nothing
        return tuple(places)
    winner = max(places, key=lambda place: mean_logprob(outputs[place]))
    return (winner, *(place for place in places if place != winner))


def to_body(generate: Generate, outputs: Sequence[Output]) -> GenerateResponse:
    """Return the answer of `/generate`: the first output, and with `details` the others beside it."""
    winner, *losers = outputs
    text = to_text(generate, finish_of(winner))
    if not generate.details:
        return {"generated_text": text}
    details = _details(winner)
    if losers:
        details["best_of_sequences"] = [_loser(generate, loser) for loser in losers]
    return {"generated_text": text, "details": details}


def to_event(generate: Generate, event: Event) -> StreamResponse:
    """Return the stream event of a token; the last one has the whole text, too."""
    finish = event.finish
    body: StreamResponse = {
        "index": event.index,
        "token": _shown(event),
        "generated_text": None if finish is None else to_text(generate, finish),
        "details": None if finish is None or not generate.details else to_details(finish),
    }
    if event.top_tokens:
        body["top_tokens"] = [to_token(token) for token in event.top_tokens]
    return body


def to_text(generate: Generate, finish: Finish) -> str:
    """Return the text to answer with, after the prompt if that was asked for."""
    return generate.inputs + finish.text if generate.return_full_text else finish.text


def to_details(finish: Finish) -> StreamDetails:
    """Return how a text came about, without its tokens."""
    return {
        "finish_reason": finish.reason.value,
        "generated_tokens": finish.generated_tokens,
        "seed": finish.seed,
        "input_length": finish.prompt_tokens,
    }


def to_token(token: Token) -> WireToken:
    """Return a generated token as TGI tells it."""
    return {
        "id": token.id,
        "text": token.text,
        "logprob": shortest(token.logprob),
        "special": token.special,
    }


def _shown(event: Event) -> WireToken:
    """Return an event's token with what the text has of it: the last one's may end with a stop sequence."""
    token = to_token(event.token)
    if event.finish is not None:
        token["text"] = token["text"].removesuffix(event.finish.cut)
    return token


def _parameters(given: GenerateParameters, limits: Limits, do_sample: bool) -> Parameters:
    return Parameters(
        best_of=given.get("best_of"),
        temperature=single(given.get("temperature")),
        repetition_penalty=single(given.get("repetition_penalty")),
        frequency_penalty=single(given.get("frequency_penalty")),
        presence_penalty=single(given.get("presence_penalty")),
        top_k=given.get("top_k"),
        top_p=single(given.get("top_p")),
        typical_p=single(given.get("typical_p")),
        min_p=single(given.get("min_p")),
        do_sample=given.get("do_sample", do_sample),
        max_new_tokens=given.get("max_new_tokens"),
        min_new_tokens=given.get("min_new_tokens"),
        ignore_eos=bool(given.get("ignore_eos")),
        stop=several(given.get("stop")),
        seed=given.get("seed"),
        top_n_tokens=given.get("top_n_tokens"),
        truncate=given.get("truncate"),
        logit_bias=given.get("logit_bias"),
        watermark=limits.watermark if given.get("watermark") else None,
        cache_salt=given.get("cache_salt"),
        adapter=given.get("adapter_id"),
    )


def _grammar(given: GenerateParameters, limits: Limits) -> Wanted:
    wanted = given.get("grammar")
    if wanted is None:
        return None
    return grammar_or_refusal(lambda: allowed(to_grammar(wanted, "parameters.grammar"), limits))


def _details(events: Output) -> Details:
    finish = finish_of(events)
    details: Details = {
        "finish_reason": finish.reason.value,
        "generated_tokens": finish.generated_tokens,
        "seed": finish.seed,
        "prefill": [_prefill_token(token) for token in events[0].prompt],
        "tokens": [_shown(event) for event in events],
    }
    if any(event.top_tokens for event in events):
        details["top_tokens"] = [[to_token(token) for token in event.top_tokens] for event in events]
    return details


def _loser(generate: Generate, events: Output) -> BestOfSequence:
    """Return one of `best_of_sequences`: its text, and what `details` says of the winner."""
    details = _details(events)
    sequence: BestOfSequence = {
        "generated_text": to_text(generate, finish_of(events)),
        "finish_reason": details["finish_reason"],
        "generated_tokens": details["generated_tokens"],
        "seed": details["seed"],
        "prefill": details["prefill"],
        "tokens": details["tokens"],
    }
    if "top_tokens" in details:
        sequence["top_tokens"] = details["top_tokens"]
    return sequence


def _prefill_token(token: PromptToken) -> PrefillToken:
    logprob = None if token.logprob is None else shortest(token.logprob)
    return {"id": token.id, "text": token.text, "logprob": logprob}
