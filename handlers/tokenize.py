"""Texts as the model's tokens, without generating."""

from __future__ import annotations

from dataclasses import asdict

from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import json_reply
from handlers.sequences import counted
from handlers.service import Service
from handlers.wire.messages import to_template


async def tokenize(service: Service, call: Call) -> Response:
    """Answer `POST /tokenize`; special tokens are added unless the body says otherwise."""
    add_special_tokens = call.body.get("add_special_tokens") is not False
    tokens = await service.engine.tokenize(call.body["inputs"], add_special_tokens=add_special_tokens)
    return json_reply([asdict(token) for token in tokens])


async def get_chat_tokenize(service: Service, call: Call) -> Response:
    """Answer `POST /chat_tokenize`; special tokens are those that the template writes."""
    service.metrics.count_request()
    with counted(service.metrics):
        text = await service.engine.render_chat(to_template(call.body["messages"]))
        tokens = await service.engine.tokenize(text, add_special_tokens=False)
    return json_reply({"tokenize_response": [asdict(token) for token in tokens], "templated_text": text})
