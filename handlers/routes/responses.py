"""OpenAI's Responses, of which nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, Failure, JsonReply
from handlers.routes import single_answer
from handlers.routes.chat import Prepared
from handlers.routes.single_answer import Form
from handlers.routes.thoughts import reader_of
from handlers.service import Service
from handlers.wire import responses as wire
from handlers.wire.calls import CallIds
from handlers.wire.openai import logprobs
from handlers.wire.parts import Logprobs, Tell
from handlers.wire.response_answer import ResponseAnswer
from handlers.wire.response_output import Output
from handlers.wire.responses import Asked
from handlers.wire.types import ModelResponse, ResponseEvent, ResponsesRequest
from inference.frontend.client import EngineClient
from inference.types import Event


async def create_response(
    service: Service, call: Call[ResponsesRequest]
) -> JsonReply[ModelResponse] | EventStream[ResponseEvent]:
    """Answer `POST /v1/responses`, whole or as a stream of events."""
    return await single_answer.answered(service, call, FORM)


def _begin(engine: EngineClient, asked: Asked, prepared: Prepared, prompt_tokens: int) -> ResponseAnswer:
    numbers, conversation = count(), prepared.chat.conversation
    ids, thoughts = CallIds(conversation.messages, answer=prepared.requests[0].id), prepared.chat.thoughts
    output = Output(
        prepared.requests[0].id,
        numbers,
        parser=reader_of(engine, prepared.chat),
        call_ids=ids.of(0),
        tell=_tell(engine, asked),
        shows_thoughts=thoughts is not None and thoughts.shown,
        offers=asked.offers,
    )
    return ResponseAnswer(asked.blank(prepared.stamp), output, numbers, lambda: int(time.time()))


def _tell(engine: EngineClient, asked: Asked) -> Tell | None:
    if not asked.chat.logprobs:
        return None
    top, token_bytes = asked.chat.top_logprobs, engine.token_bytes

    def told(events: Sequence[Event]) -> Logprobs:
        return logprobs(events, top, token_bytes)["content"]

    return told


def _failed(answer: ResponseAnswer, failure: Failure) -> Iterable[Mapping[str, Any]]:
    return answer.failed(
        {
            "code": "server_error",
            "message": failure.error,
            "type": failure.error_type,
            "request_id": failure.request_id,
        }
    )


FORM = Form(
    dialect=Dialect.RESPONSES,
    prefix="resp_",
    understand=wire.to_asked,
    begin=_begin,
    failed=_failed,
)
