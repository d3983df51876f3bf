"""Many tokens as JSON: the same bytes as at once, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest

from handlers import operations
from handlers.http.call import Call
from handlers.tokenize import SLICE_TOKENS
from tests.unit.handlers.conftest import Start

pytestmark = pytest.mark.anyio

Make = Callable[..., Call[Any]]
LONG = "a " * 3 * SLICE_TOKENS


async def test_a_long_text_has_every_token_in_order(start: Start, call: Make) -> None:
    service = await start()
    tokens = await service.engine.tokenize(LONG)
    reply = await operations.OPERATIONS["tokenize"](service, call({"inputs": LONG}))
    assert len(tokens) > 2 * SLICE_TOKENS
    assert json.loads(bytes(reply.body)) == [asdict(token) for token in tokens]


async def test_a_long_chat_has_its_text_beside_the_tokens(start: Start, call: Make) -> None:
    service = await start()
    messages = [{"role": "user", "content": LONG}]
    reply = await operations.OPERATIONS["get_chat_tokenize"](service, call({"messages": messages}))
    body = json.loads(bytes(reply.body))
    tokens = await service.engine.tokenize(body["templated_text"], add_special_tokens=False)
    assert body["tokenize_response"] == [asdict(token) for token in tokens]


async def test_the_event_loop_goes_on_while_many_tokens_are_written(
    start: Start, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start()
    tokens = await service.engine.tokenize(LONG)
    turns = 0

    async def tokenized(text: str, *, add_special_tokens: bool) -> object:
        return tokens

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(service.engine, "tokenize", tokenized)
    counting = asyncio.create_task(count())
    await operations.OPERATIONS["tokenize"](service, call({"inputs": LONG}))
    counting.cancel()
    with suppress(asyncio.CancelledError):
        await counting
    assert turns > 0
