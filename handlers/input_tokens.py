"""How many tokens an input of OpenAI's Responses has, without an answer to it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from handlers import prompts
from handlers.http.call import Call
from handlers.http.replies import JsonReply, json_reply
from handlers.images.gathering import check_images, gather, placed
from handlers.sequences import counted, limits_of, new_id
from handlers.service import Service
from handlers.wire import responses as wire
from handlers.wire.types import InputTokens, InputTokensRequest
from inference.types import Request


async def count_input_tokens(service: Service, call: Call[InputTokensRequest]) -> JsonReply[InputTokens]:
    """Answer `POST /v1/responses/input_tokens`; images are looked at by the engine, in a place there."""
    service.metrics.count_request()
    engine = service.engine
    with counted(service.metrics), ExitStack() as held, wire.own_names():
        asked = await call.aside(partial(wire.to_counted, call.body))
        conversation, images = asked.conversation, asked.conversation.images
        check_images(service, call, images)
        if images:
            held.enter_context(engine.admit(1, call.owner))
        await prompts.check_tools(conversation, limits_of(service.settings), call.aside)
        prompt = await prompts.render(engine, conversation)
        files = await gather(service, call, images)
        request = Request(
            id=new_id(), prompt=prompt, add_special_tokens=False, owner=call.owner, images=files
        )
        with placed(images, files):
            tokens = await engine.count(request)
    headers = prompts.ignored_headers(engine, conversation, asked.without_effect)
    return json_reply({"object": "response.input_tokens", "input_tokens": tokens}, headers=headers)
