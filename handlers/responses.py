"""OpenAI's Responses, of which nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count

from handlers.account import note_prompt
from handlers.chat import Prepared, ready
from handlers.http.aside import made
from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, Failure, JsonReply, json_reply, named_event
from handlers.images.gathering import placed
from handlers.sequences import Flow, counted, limits_of, run, streamed, submitted
from handlers.service import Service
from handlers.thoughts import reader_of
from handlers.wire import responses as wire
from handlers.wire.calls import CallIds
from handlers.wire.headers import answer_headers, stream_headers
from handlers.wire.openai import logprobs
from handlers.wire.output_items import Logprobs
from handlers.wire.outputs import finish_of, values_of
from handlers.wire.response_answer import ResponseAnswer
from handlers.wire.response_output import Output, Tell
from handlers.wire.responses import Asked
from handlers.wire.types import ModelResponse, ResponseEvent, ResponsesRequest
from inference.client import EngineClient
from inference.types import Event


async def create_response(
    service: Service, call: Call[ResponsesRequest]
) -> JsonReply[ModelResponse] | EventStream[ResponseEvent]:
    """Answer `POST /v1/responses`, whole or as a stream of events."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        held.enter_context(service.engine.admit(1, call.owner))
        asked = await call.aside(partial(wire.to_asked, call.body, limits_of(service.settings)))
        with wire.own_names():
            prepared = await ready(service, call, asked.chat, call.aside, prefix="resp_")
            note_prompt(prepared.requests)
            answer = _answer(service.engine, asked, prepared)
            with placed(asked.chat.conversation.images, prepared.requests[0].images):
                if not asked.chat.stream:
                    return await _complete(service, call, prepared, answer)
                generations = await submitted(service.engine, prepared.requests, call.owner)
        flow = Flow(generations, service.metrics, answer.events, frame=named_event, values=answer.values)
        headers = stream_headers(service.settings.compute_type, [prepared.requests[0].prompt])
        return streamed(
            flow,
            dialect=Dialect.RESPONSES,
            headers=headers | prepared.ignored,
            on_close=held.pop_all().close,
            failed=partial(_failed, answer),
        )


async def _complete(
    service: Service, call: Call[ResponsesRequest], prepared: Prepared, answer: ResponseAnswer
) -> JsonReply[ModelResponse]:
    (events,) = await run(service.engine, prepared.requests, call.owner)
    finish, (request,) = finish_of(events), prepared.requests
    service.metrics.finished(finish, request)

    def answered() -> JsonReply[ModelResponse]:
        headers = answer_headers(service.settings.compute_type, request.prompt, [finish], call.received)
        return json_reply(answer.body(events), headers=headers | prepared.ignored)

    return await made(answered, values_of(events, request))


def _answer(engine: EngineClient, asked: Asked, prepared: Prepared) -> ResponseAnswer:
    numbers, conversation = count(), prepared.chat.conversation
    ids, thoughts = CallIds(conversation.messages, answer=prepared.requests[0].id), prepared.chat.thoughts
    output = Output(
        prepared.requests[0].id,
        numbers,
        parser=reader_of(engine, prepared.chat),
        call_ids=ids.of(0),
        tell=_tell(engine, asked),
        shows_thoughts=thoughts is not None and thoughts.shown,
    )
    return ResponseAnswer(asked.blank(prepared.stamp), output, numbers, lambda: int(time.time()))


def _tell(engine: EngineClient, asked: Asked) -> Tell | None:
    if not asked.chat.logprobs:
        return None
    top, token_bytes = asked.chat.top_logprobs, engine.token_bytes

    def told(events: Sequence[Event]) -> Logprobs:
        return logprobs(events, top, token_bytes)["content"]

    return told


def _failed(answer: ResponseAnswer, failure: Failure) -> bytes:
    """Return what is left to say in a stream that failed."""
    told = answer.failed(
        {
            "code": "server_error",
            "message": failure.error,
            "type": failure.error_type,
            "request_id": failure.request_id,
        }
    )
    return b"".join(map(named_event, told))
