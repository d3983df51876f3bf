"""Texts as the model's tokens, without generating."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import orjson

from handlers.http.call import Call
from handlers.http.replies import JsonReply, LongJsonReply, json_reply
from handlers.images.gathering import check_images
from handlers.routes import prompts
from handlers.routes.sequences import counted, limits_of
from handlers.service import Service
from handlers.wire.conversation import to_conversation
from handlers.wire.types import ChatTokenizeRequest, ChatTokenizeResponse, TokenizeRequest, TokenizeResponse
from inference.types import TextToken

SLICE_TOKENS = 2048  # of an answer: written as JSON in two milliseconds, for which nothing else runs


async def tokenize(service: Service, call: Call[TokenizeRequest]) -> JsonReply[TokenizeResponse]:
    """Answer `POST /tokenize`; special tokens are added unless the body says otherwise."""
    add_special_tokens = call.body.get("add_special_tokens") is not False
    tokens = await service.engine.tokenize(call.body["inputs"], add_special_tokens=add_special_tokens)
    if len(tokens) <= SLICE_TOKENS:
        return json_reply(_as_told(tokens))
    return LongJsonReply(_array(tokens))


async def get_chat_tokenize(
    service: Service, call: Call[ChatTokenizeRequest]
) -> JsonReply[ChatTokenizeResponse]:
    """Answer `POST /chat_tokenize`; special tokens are those that the template writes."""
    service.metrics.count_request()
    with counted(service.metrics):
        conversation = await call.aside(partial(to_conversation, call.body))
        check_images(service, call, conversation.images)  # and that is all that is done with them
        await prompts.check_tools(conversation, limits_of(service), call.aside)
        text = await prompts.render(service.engine, conversation)
        tokens = await service.engine.tokenize(text, add_special_tokens=False)
    headers = prompts.ignored_headers(service.engine, conversation)
    if len(tokens) <= SLICE_TOKENS:
        return json_reply({"tokenize_response": _as_told(tokens), "templated_text": text}, headers=headers)
    return LongJsonReply(_chat(tokens, text), headers)


def _as_told(tokens: Sequence[TextToken]) -> TokenizeResponse:
    """Return tokens as the contract has them: `TextToken` has the members of `SimpleToken`."""
    return cast(TokenizeResponse, tuple(tokens))


def _array(tokens: Sequence[TextToken]) -> Iterator[bytes]:
    """Yield tokens as JSON, a slice at a time."""
    for at in range(0, len(tokens), SLICE_TOKENS):
        yield (b"," if at else b"[") + orjson.dumps(tuple(tokens[at : at + SLICE_TOKENS]))[1:-1]
    yield b"]"


def _chat(tokens: Sequence[TextToken], text: str) -> Iterator[bytes]:
    """Yield tokens beside the text that they are of."""
    yield b'{"tokenize_response":'
    yield from _array(tokens)
    yield b',"templated_text":' + orjson.dumps(text) + b"}"
