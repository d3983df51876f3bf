"""OpenAI's chat completions."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from handlers.account import note_prompt
from handlers.http.aside import Aside, made
from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, JsonReply, json_reply
from handlers.images.gathering import check_images, gather, placed
from handlers.routes import prompts, thoughts
from handlers.routes.sequences import (
    Flow,
    counted,
    draw_seed,
    limits_of,
    logprobs_mode,
    new_id,
    run,
    streamed,
    submitted,
)
from handlers.service import Service
from handlers.settings.table import Settings
from handlers.version import fingerprint
from handlers.wire import chat as wire
from handlers.wire.calls import CallDeltas, CallIds, ReasoningField
from handlers.wire.chat import Chat
from handlers.wire.chat_answer import ChatAnswer
from handlers.wire.choice import Choice, PartsChoice, TextChoice
from handlers.wire.grammar import allowed
from handlers.wire.headers import Headers, answer_headers, stream_headers
from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp, logprobs, to_choices
from handlers.wire.outputs import finish_of, values_of
from handlers.wire.requests import Wanted, grammar_or_refusal, left_out
from handlers.wire.types import ChatCompletion, ChatCompletionChunk, ChatRequest
from inference.errors import GrammarRefused
from inference.frontend.client import EngineClient
from inference.tools.grammar import call_grammar
from inference.types import Grammar, LogprobsMode, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A chat that the engine can answer: what was asked, and one request for each choice."""

    chat: Chat
    requests: tuple[Request, ...]
    stamp: Stamp
    ignored: Headers  # names what has no effect with this model


async def chat_completions(
    service: Service, call: Call[ChatRequest]
) -> JsonReply[ChatCompletion] | EventStream[ChatCompletionChunk]:
    """Answer `POST /v1/chat/completions`, whole or as a stream of chunks."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        choices = to_choices(call.body, limits_of(service))
        held.enter_context(service.engine.admit(choices, call.owner))
        prepared = await prepare(service, call, call.body)
        note_prompt(prepared.requests)
        with placed(prepared.chat.conversation.images, prepared.requests[0].images):
            if not prepared.chat.stream:
                return await _complete(service, call, prepared)
            flow = await _start(service, call, prepared)
        headers = stream_headers(service.settings.compute_type, [prepared.requests[0].prompt])
        headers |= prepared.ignored
        return streamed(flow, dialect=Dialect.OPENAI, headers=headers, on_close=held.pop_all().close)


async def prepare(
    service: Service, call: Call[Any], body: ChatRequest, aside: Aside | None = None
) -> Prepared:
    """Understand a body, render its prompt and fetch its images.

    `body` and `aside` are the call's own, or those of a part of it; places in the engine are the caller's to
    take. Raises InvalidInput, ToolRefused, TemplateFailed or Overloaded.
    """
    aside = aside or call.aside
    chat = await aside(partial(wire.to_chat, body, limits_of(service)))
    return await ready(service, call, chat, aside, prefix="chatcmpl-")


async def ready(service: Service, call: Call[Any], chat: Chat, aside: Aside, *, prefix: str) -> Prepared:
    """Render the prompt of a body that was understood and fetch its images; `prefix` begins the answer's id.

    Raises InvalidInput, ToolRefused, TemplateFailed or Overloaded.
    """
    engine, limits = service.engine, limits_of(service)
    check_images(service, call, chat.conversation.images)
    prompt = await prompts.render(engine, chat.conversation)
    apart = thoughts.thoughts_of(engine, service.settings, chat, prompt)
    whole = chat.conversation.answering(prompt) if apart is None else chat.conversation
    chat = replace(chat, conversation=whole, thoughts=apart)
    grammar = await _grammar(engine, chat, aside, limits)
    images = await gather(service, call, chat.conversation.images)
    mode, id = logprobs_mode(service.settings, LogprobsMode.RAW), new_id()
    return Prepared(
        chat=chat,
        requests=wire.to_requests(
            chat, prompt, id=id, draw=draw_seed, grammar=grammar, logprobs=mode, images=images
        ),
        stamp=_stamp(service, chat, prefix + id),
        ignored=prompts.ignored_headers(
            engine,
            chat.conversation,
            (
                *(*chat.without_effect, *left_out(grammar), *prompts.unknown_model(chat.model, service)),
                *thoughts.idle(engine, chat),
            ),
        ),
    )


async def _grammar(engine: EngineClient, chat: Chat, aside: Aside, limits: Limits) -> Wanted:
    """Return what the whole text must follow; a thread looks through the tools, whose schemas can be long."""
    tools, form = chat.conversation.tools, chat.grammar
    if isinstance(form, GrammarRefused):
        return form
    if tools is None:
        return grammar_or_refusal(lambda: thoughts.with_room(engine, chat, allowed(form, limits)))

    def of_calls() -> Grammar | None:
        grammar = allowed(call_grammar(engine.tool_format, tools, limits.of_schema, form=form), limits)
        return thoughts.with_room(engine, chat, grammar)

    return await aside.on_thread(partial(grammar_or_refusal, of_calls))


def choices_of(
    engine: EngineClient, prepared: Prepared, field: ReasoningField, *, speaks_openai: bool
) -> tuple[Choice, ...]:
    """Return what makes the answer's choices of the engine's events.

    `field` is the member that has what was thought; `speaks_openai` says whose client asks.
    """
    chat, tell = prepared.chat, None
    if chat.logprobs:
        tell = partial(logprobs, top=chat.top_logprobs, token_bytes=engine.token_bytes)
    answer = prepared.requests[0].id if speaks_openai else ""
    ids = CallIds(chat.conversation.messages, chat.choices, answer=answer)
    tools = chat.conversation.tools
    custom = {tool.name for tool in tools.tools if tool.takes_text} if tools is not None else set[str]()
    shown = field if chat.thoughts is not None and chat.thoughts.shown else None

    def choice(index: int) -> Choice:
        parser = thoughts.reader_of(engine, chat)
        if parser is None:
            return TextChoice(index, tell, as_tgi=not speaks_openai)
        deltas = CallDeltas(parser, ids.of(index), shown, custom=custom)
        return PartsChoice(index, tell, deltas, as_tgi=not speaks_openai)

    return tuple(map(choice, range(chat.choices)))


def field_of(settings: Settings) -> ReasoningField:
    """Return the member of a message that has what was thought."""
    return "reasoning" if settings.reasoning_field == "reasoning" else "reasoning_content"


async def _complete(
    service: Service, call: Call[ChatRequest], prepared: Prepared
) -> JsonReply[ChatCompletion]:
    outputs = await run(service.engine, prepared.requests, call.owner)
    finishes = [finish_of(events) for events in outputs]
    for finish, request in zip(finishes, prepared.requests, strict=True):
        service.metrics.finished(finish, request)
    prompt, compute_type = prepared.requests[0].prompt, service.settings.compute_type
    answer = ChatAnswer(
        prepared.chat,
        prepared.stamp,
        choices_of(service.engine, prepared, field_of(service.settings), speaks_openai=call.speaks_openai),
    )

    def answered() -> JsonReply[ChatCompletion]:
        headers = answer_headers(compute_type, prompt, finishes, call.received) | prepared.ignored
        return json_reply(answer.body(outputs), headers=headers)

    return await made(answered, sum(map(values_of, outputs, prepared.requests)))


async def _start(service: Service, call: Call[ChatRequest], prepared: Prepared) -> Flow[ChatCompletionChunk]:
    generations = await submitted(service.engine, prepared.requests, call.owner)
    answer = ChatAnswer(
        prepared.chat,
        prepared.stamp,
        choices_of(service.engine, prepared, field_of(service.settings), speaks_openai=call.speaks_openai),
        prompt_tokens=generations[0].prompt_tokens,
        in_order=call.speaks_openai,
    )
    return Flow(generations, service.metrics, answer.chunks)


def _stamp(service: Service, chat: Chat, id: str) -> Stamp:
    return Stamp(
        id=id,
        created=int(time.time()),
        model=chat.model or service.engine.model.id,
        fingerprint=fingerprint(service.settings.docker_label),
    )
