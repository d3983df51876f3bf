"""OpenAI's chat completions, and the tokens of a chat."""

from __future__ import annotations

import time
from contextlib import ExitStack

from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, json_reply
from handlers.sequences import Flow, counted, draw_seed, limits_of, logprobs_mode, new_id, run
from handlers.service import Service
from handlers.version import fingerprint
from handlers.wire import chat as wire
from handlers.wire.chat import Chat
from handlers.wire.headers import answer_headers, stream_headers
from handlers.wire.openai import Stamp
from handlers.wire.tgi import finish_of
from inference.types import Event, LogprobsMode, Request


async def chat_completions(service: Service, call: Call) -> Response:
    """Answer `POST /v1/chat/completions`, whole or as a stream of chunks."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        held.enter_context(service.engine.admit())
        chat = wire.to_chat(call.body, limits_of(service.settings))
        id = new_id()
        prompt = await service.engine.render_chat(chat.messages)
        mode = logprobs_mode(service.settings, LogprobsMode.RAW)
        request = wire.to_request(chat, prompt, id=id, draw=draw_seed, logprobs=mode)
        stamp = _stamp(service, chat, id)
        if not chat.stream:
            return await _complete(service, call, chat, stamp, request)
        flow = await Flow.start(service, [request], lambda _, event: _chunks(chat, stamp, event))
        headers = stream_headers(service.settings.compute_type, [prompt])
        return EventStream(flow, dialect=Dialect.OPENAI, headers=headers, on_close=held.pop_all().close)


async def _complete(service: Service, call: Call, chat: Chat, stamp: Stamp, request: Request) -> Response:
    (events,) = await run(service.engine, [request])
    finish = finish_of(events)
    service.metrics.finished(finish, request)
    headers = answer_headers(service.settings.compute_type, request.prompt, finish, call.received)
    return json_reply(wire.to_body(chat, stamp, events), headers=headers)


def _chunks(chat: Chat, stamp: Stamp, event: Event) -> list[wire.Json]:
    chunk = wire.to_chunk(chat, stamp, event)
    if event.finish is None or not chat.include_usage:
        return [chunk]
    return [chunk, wire.to_usage_chunk(stamp, event.finish)]


def _stamp(service: Service, chat: Chat, id: str) -> Stamp:
    return Stamp(
        id=f"chatcmpl-{id}",
        created=int(time.time()),
        model=chat.model or service.engine.model.id,
        fingerprint=fingerprint(service.settings.docker_label),
    )
