"""Many tokens as JSON: the same bytes as at once, made a piece at a time, as the client reads them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from handlers.http.call import Call
from handlers.http.errors import ClientDisconnected
from handlers.routes import operations
from handlers.routes.tokenize import SLICE_TOKENS
from inference.types import TextToken
from tests.unit.handlers.conftest import Start

pytestmark = pytest.mark.anyio

Make = Callable[..., Call[Any]]
Send = Callable[[Any], Awaitable[None]]
LONG = "a " * 3 * SLICE_TOKENS


async def stays() -> Any:
    """Receive nothing: the client stays."""
    await asyncio.Event().wait()


async def sent(reply: Any) -> tuple[bytes, dict[bytes, bytes], int]:
    """Return what a reply sends: body, headers, and how many pieces."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await reply({"type": "http", "extensions": {}}, stays, send)
    start, *pieces = messages
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    return b"".join(piece["body"] for piece in pieces), dict(start["headers"]), len(pieces)


async def test_a_long_text_has_every_token_in_order(start: Start, call: Make) -> None:
    service = await start()
    tokens = await service.engine.tokenize(LONG)
    reply = await operations.OPERATIONS["tokenize"](service, call({"inputs": LONG}))
    body, headers, pieces = await sent(reply)
    assert len(tokens) > 2 * SLICE_TOKENS
    assert pieces > 2
    assert body == orjson.dumps(list(tokens))
    assert headers == {b"content-type": b"application/json"}


async def test_a_short_text_comes_as_a_whole_with_its_length(start: Start, call: Make) -> None:
    service = await start()
    reply = await operations.OPERATIONS["tokenize"](service, call({"inputs": "Hi there"}))
    body, headers, pieces = await sent(reply)
    assert (pieces, headers[b"content-length"]) == (1, str(len(body)).encode())
    assert json.loads(body) == [asdict(token) for token in await service.engine.tokenize("Hi there")]


async def test_a_long_chat_has_its_text_beside_the_tokens(start: Start, call: Make) -> None:
    service = await start()
    asked = {"messages": [{"role": "user", "content": LONG}], "reasoning_effort": "low"}
    reply = await operations.OPERATIONS["get_chat_tokenize"](service, call(asked))
    raw, headers, _ = await sent(reply)
    body = json.loads(raw)
    tokens = await service.engine.tokenize(body["templated_text"], add_special_tokens=False)
    assert raw == orjson.dumps({"tokenize_response": list(tokens), "templated_text": body["templated_text"]})
    assert headers[b"x-ignored-parameters"] == b"reasoning_effort"


async def test_no_more_is_made_than_is_sent(
    start: Start, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start()
    made: list[tuple[int, int]] = []  # how many tokens, and on which thread

    class Tokens(list[TextToken]):
        def __getitem__(self, at: Any) -> Any:
            made.append((at.stop - at.start, threading.get_ident()))
            return super().__getitem__(at)

    tokens = Tokens(await service.engine.tokenize(LONG))

    async def tokenized(text: str, *, add_special_tokens: bool) -> object:
        return tokens

    sending, left = asyncio.Event(), asyncio.Event()

    async def send_never_ends(message: Any) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()

    async def leaves() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    monkeypatch.setattr(service.engine, "tokenize", tokenized)
    reply = await operations.OPERATIONS["tokenize"](service, call({"inputs": LONG}))
    answering = asyncio.ensure_future(reply({"type": "http", "extensions": {}}, leaves, send_never_ends))
    await asyncio.wait_for(sending.wait(), 60)
    assert [count for count, _ in made] == [SLICE_TOKENS]
    assert threading.get_ident() not in {thread for _, thread in made}
    left.set()
    with pytest.raises(ClientDisconnected):
        await answering
    assert len(made) == 1
