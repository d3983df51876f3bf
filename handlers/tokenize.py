"""Texts as the model's tokens, without generating."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import orjson

from handlers import prompts
from handlers.http.call import Call
from handlers.http.replies import JsonReply, json_reply
from handlers.sequences import counted
from handlers.service import Service
from handlers.wire.conversation import to_conversation
from handlers.wire.types import ChatTokenizeRequest, ChatTokenizeResponse, TokenizeRequest, TokenizeResponse
from inference.types import TextToken

SLICE_TOKENS = 4096  # written as JSON in a millisecond or two, for which nothing else runs


async def tokenize(service: Service, call: Call[TokenizeRequest]) -> JsonReply[TokenizeResponse]:
    """Answer `POST /tokenize`; special tokens are added unless the body says otherwise."""
    add_special_tokens = call.body.get("add_special_tokens") is not False
    tokens = await service.engine.tokenize(call.body["inputs"], add_special_tokens=add_special_tokens)
    return json_reply(await _to_json(tokens))


async def get_chat_tokenize(
    service: Service, call: Call[ChatTokenizeRequest]
) -> JsonReply[ChatTokenizeResponse]:
    """Answer `POST /chat_tokenize`; special tokens are those that the template writes."""
    service.metrics.count_request()
    with counted(service.metrics):
        conversation = to_conversation(call.body)
        text = await prompts.render(service.engine, conversation)
        tokens = await service.engine.tokenize(text, add_special_tokens=False)
    body: ChatTokenizeResponse = {"tokenize_response": await _to_json(tokens), "templated_text": text}
    return json_reply(body, headers=prompts.ignored_headers(service.engine, conversation))


async def _to_json(tokens: Sequence[TextToken]) -> TokenizeResponse:
    """Return the tokens, written already; a long text's on a thread, or every stream would wait."""
    short = len(tokens) <= SLICE_TOKENS
    written = orjson.dumps(tokens) if short else await asyncio.to_thread(_dump_in_slices, tokens)
    return cast(TokenizeResponse, orjson.Fragment(written))  # `TextToken` has the members of `SimpleToken`


def _dump_in_slices(tokens: Sequence[TextToken]) -> bytes:
    """Return what one `dumps` would, letting go of the interpreter between slices."""
    slices = (tokens[at : at + SLICE_TOKENS] for at in range(0, len(tokens), SLICE_TOKENS))
    return b"[" + b",".join(orjson.dumps(piece)[1:-1] for piece in slices) + b"]"
