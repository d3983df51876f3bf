"""How many tokens an input of OpenAI's Responses or of Anthropic's Messages has, without an answer to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from handlers.http.call import Call
from handlers.http.replies import JsonReply, json_reply
from handlers.images.gathering import check_images, gather, placed
from handlers.routes import prompts
from handlers.routes.sequences import counted, limits_of, new_id
from handlers.service import Service
from handlers.wire import anthropic, responses
from handlers.wire.conversation import Conversation, Counted
from handlers.wire.headers import Headers
from handlers.wire.types import InputTokens, InputTokensRequest, MessageTokens, MessageTokensRequest
from inference.types import Request


async def count_input_tokens(service: Service, call: Call[InputTokensRequest]) -> JsonReply[InputTokens]:
    """Answer `POST /v1/responses/input_tokens`."""
    understand = partial(responses.to_counted, call.body)
    tokens, headers = await _count(service, call, understand)
    return json_reply({"object": "response.input_tokens", "input_tokens": tokens}, headers=headers)


async def count_message_tokens(
    service: Service, call: Call[MessageTokensRequest]
) -> JsonReply[MessageTokens]:
    """Answer `POST /v1/messages/count_tokens`."""
    understand = partial(anthropic.to_counted, call.body)
    tokens, headers = await _count(service, call, understand)
    return json_reply({"input_tokens": tokens}, headers=headers)


async def _count(service: Service, call: Call[Any], understand: Callable[[], Counted]) -> tuple[int, Headers]:
    """Return the tokens of an input, and headers; images are looked at by the engine, in a place there."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        asked = await call.aside(understand)
        tokens = await _tokens(service, call, asked.conversation, held)
    without_effect = (*asked.without_effect, *prompts.unknown_model(asked.model, service))
    return tokens, prompts.ignored_headers(service.engine, asked.conversation, without_effect)


async def _tokens(service: Service, call: Call[Any], conversation: Conversation, held: ExitStack) -> int:
    engine, images = service.engine, conversation.images
    check_images(service, call, images)
    if images:
        held.enter_context(engine.admit(1, call.owner))
    await prompts.check_tools(conversation, limits_of(service), call.aside)
    prompt = await prompts.render(engine, conversation)
    files = await gather(service, call, images)
    request = Request(id=new_id(), prompt=prompt, add_special_tokens=False, owner=call.owner, images=files)
    with placed(images, files):
        return await engine.count(request)
