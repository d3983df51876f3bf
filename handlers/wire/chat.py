"""OpenAI's chat completions: what a body asks for, but for its prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from handlers.wire.conversation import Conversation, to_conversation
from handlers.wire.guided import to_guided
from handlers.wire.limits import Limits
from handlers.wire.openai import continuous_usage, idle_options, include_usage, to_choices, to_parameters
from handlers.wire.parameters import Draw, Parameters, check, samplings
from handlers.wire.requests import Wanted, grammar_or_refusal, numbered, to_request
from handlers.wire.response_format import to_response_format
from handlers.wire.types import ChatRequest
from inference.errors import InvalidInput, Member
from inference.thoughts.types import ThoughtUse
from inference.types import Image, LogprobsMode, Request

MODEL_CHARACTERS = 1024  # of a name that is echoed in every chunk of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A body understood, but for its prompt, which the chat template has to make."""

    conversation: Conversation
    parameters: Parameters
    grammar: Wanted  # of `response_format`, or in vLLM's words; that of tools is the engine's to make
    model: str | None  # to echo; None for the served one
    stream: bool
    choices: int = 1
    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    without_effect: tuple[str, ...]  # members that would have one beside others only
    reasoning_format: str | None = None  # None: as the server's settings say
    tells_thoughts: bool = False  # the answer has a place for them in any case
    thoughts: ThoughtUse | None = None  # told apart from the answer, as is known once there is a prompt


def to_chat(body: ChatRequest, limits: Limits) -> Chat:
    """Understand a chat body; raise InvalidInput or ToolRefused with the first check that fails.

    As in TGI, the tools come before the parameters, and the form of the answer after all that is checked.
    """
    conversation = to_conversation(body)
    wanted = bool(body.get("logprobs"))
    top = body.get("top_logprobs") or 0
    if top > limits.max_top_logprobs:
        raise InvalidInput(
            Member("top_logprobs"), f" must be >= 0 and <= {limits.max_top_logprobs}. Given: {top}"
        )
    parameters = to_parameters(body, _max_tokens(body), limits)
    check(parameters, limits)
    form = grammar_or_refusal(
        lambda: to_guided(body) or to_response_format(body.get("response_format"), limits)
    )
    return Chat(
        conversation=conversation.beside(form),
        parameters=parameters,
        grammar=form,
        model=echoed(body.get("model")),
        choices=to_choices(body, limits),
        stream=bool(body.get("stream")),
        include_usage=include_usage(body),
        continuous_usage=continuous_usage(body),
        logprobs=wanted,
        top_logprobs=top if wanted else 0,
        without_effect=(*(("top_logprobs",) if top and not wanted else ()), *idle_options(body)),
        reasoning_format=body.get("reasoning_format"),
    )


def to_requests(
    chat: Chat,
    prompt: str,
    *,
    id: str,
    draw: Draw,
    grammar: Wanted = None,
    logprobs: LogprobsMode = LogprobsMode.RAW,
    images: tuple[Image, ...] = (),
) -> tuple[Request, ...]:
    """Return a request for each choice; the rendered prompt brings its own special tokens.

    `grammar` is what the whole text must follow; `logprobs`, which are told if any are; `images`, those whose
    marks are in the prompt.
    """
    mode = logprobs if chat.logprobs else LogprobsMode.NONE
    request = replace(
        to_request(chat.parameters, id=id, prompt=prompt, logprobs=mode),
        add_special_tokens=False,
        tools=chat.conversation.tools,
        thoughts=chat.thoughts,
        grammar=grammar,
        top_n_tokens=chat.top_logprobs,
        images=images,
    )
    choices = samplings(chat.parameters, draw, chat.choices)
    return numbered(replace(request, sampling=sampling) for sampling in choices)


def echoed(model: str | None) -> str | None:
    """Return the model's name to answer with; None where the served model's own is meant.

    Raises InvalidInput for a name that would swell every chunk of a stream.
    """
    if model is not None and len(model) > MODEL_CHARACTERS:
        raise InvalidInput(
            Member("model"), f" must have at most {MODEL_CHARACTERS} characters. Given: {len(model)}"
        )
    return None if model is None or model == "tgi" else model


def _max_tokens(body: ChatRequest) -> int | None:
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidInput(
            Member("max_tokens"),
            f" is {old} and `max_completion_tokens` is {new}: they mean the same, give one",
        )
    return old if new is None else new
