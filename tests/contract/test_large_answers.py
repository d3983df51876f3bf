"""Answers that tell many tokens: they are made while others have their turn."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from handlers.wire import openai
from tests.contract.serving import served

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_answer_that_tells_much_is_made_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handlers.http.aside.MANY_VALUES", 10)
    threads: list[int] = []
    whole = openai.logprobs

    def noted(*all: Any, **more: Any) -> Any:
        threads.append(threading.get_ident())
        return whole(*all, **more)

    for module in ("handlers.routes.chat", "handlers.routes.responses"):
        monkeypatch.setattr(f"{module}.logprobs", noted)
    include = ["message.output_text.logprobs"]
    async with served() as server:
        much = {**CHAT, "logprobs": True, "top_logprobs": 5, "max_tokens": 4}
        assert (await server.post(PATH, much)).status_code == 200
        asked = {"input": "Hi", "include": include, "top_logprobs": 5, "max_output_tokens": 4}
        assert (await server.post("/v1/responses", asked)).status_code == 200
        few = {**CHAT, "logprobs": True, "max_tokens": 2}
        assert (await server.post(PATH, few)).status_code == 200
    *aside, here = threads
    assert here == threading.get_ident()
    assert here not in aside
    assert len(aside) > 1
