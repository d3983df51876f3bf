"""Anthropic's Messages, of which nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, Failure, JsonReply
from handlers.routes import single_answer
from handlers.routes.chat import Prepared
from handlers.routes.single_answer import Form
from handlers.routes.thoughts import reader_of
from handlers.service import Service
from handlers.wire import anthropic as wire
from handlers.wire.anthropic import Asked
from handlers.wire.calls import CallIds
from handlers.wire.message_answer import MessageAnswer
from handlers.wire.output_blocks import Blocks
from handlers.wire.parts import Parts
from handlers.wire.types import MessageEvent, MessagesRequest, ModelMessage, OutputBlock
from inference.frontend.client import EngineClient


async def create_message(
    service: Service, call: Call[MessagesRequest]
) -> JsonReply[ModelMessage] | EventStream[MessageEvent]:
    """Answer `POST /v1/messages`, whole or as a stream of events."""
    return await single_answer.answered(service, call, FORM)


def _begin(engine: EngineClient, asked: Asked, prepared: Prepared, prompt_tokens: int) -> MessageAnswer:
    chat, (request,) = prepared.chat, prepared.requests
    ids = CallIds(chat.conversation.messages, answer=request.id, prefix="toolu_")
    parts: Parts[MessageEvent, OutputBlock] = Parts(
        Blocks(),
        parser=reader_of(engine, chat),
        call_ids=ids.of(0),
        shows_thoughts=chat.thoughts is not None and chat.thoughts.shown,
    )
    return MessageAnswer(prepared.stamp, request, parts, prompt_tokens)


def _failed(answer: MessageAnswer, failure: Failure) -> Iterable[Mapping[str, Any]]:
    return [failure.body(Dialect.MESSAGES)]


FORM = Form(
    dialect=Dialect.MESSAGES,
    prefix="msg_",
    understand=wire.to_asked,
    begin=_begin,
    failed=_failed,
)
