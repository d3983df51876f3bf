"""A core that says what a test tells it to, and the client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from inference.config import EngineConfig
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import CHATML, small_tokenizer
from inference.text.tokenizer import FastTokenizer
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    FinishReason,
    Frame,
    ModelInfo,
)

TOKENIZER = FastTokenizer(small_tokenizer())
(EOS,) = TOKENIZER.encode("<|im_end|>", add_special_tokens=False)
MODEL = ModelInfo(
    id="puppet",
    sha=None,
    pipeline_tag=None,
    dtype="torch.float32",
    device_type="cpu",
    max_input_tokens=20,
    max_total_tokens=30,
    max_batch_prefill_tokens=64,
    max_batch_total_tokens=64,
    level="test",
    eos_token_ids=(EOS,),
    vocabulary_size=TOKENIZER.vocabulary_size + 5,  # padded, as many models are
)
TOO_LONG = (
    "`inputs` tokens + `max_new_tokens` must be <= 30. "
    "Given: {prompt} `inputs` tokens and {new} `max_new_tokens`"
)


class Puppet:
    """A core that says exactly what the test tells it to, when told."""

    def __init__(self) -> None:
        self.requests: list[CoreRequest] = []
        self.aborted: list[str] = []
        self.alive = True
        self.sink: Callable[[Frame], None] = lambda frame: None

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        return MODEL

    def start(self, sink: Callable[[Frame], None]) -> None:
        self.sink = sink

    def submit(self, request: CoreRequest) -> None:
        self.requests.append(request)

    async def submitted(self, requests: int) -> None:
        """Wait until so many requests came."""
        for _ in range(1000):
            if len(self.requests) >= requests:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{len(self.requests)} requests came, not {requests}")

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stop(self) -> None:
        self.alive = False

    def say(self, request_id: str, text: str, finish: FinishReason | None = None) -> None:
        """Send the tokens of a text in a frame each; the last one has `finish`."""
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        for at, token_id in enumerate(ids):
            last = at == len(ids) - 1
            self.sink(Frame((CoreOutput(request_id, token_id, -0.5, finish=finish if last else None),)))

    def fail(self, *request_ids: str, own: bool = False) -> None:
        self.sink(Frame(tuple(CoreFailure(request_id, "out of paper", own) for request_id in request_ids)))


def load_text() -> TextPipeline:
    return TextPipeline(TOKENIZER, ChatTemplate({"default": CHATML}, {}), workers=1)


def with_puppet(
    test: Callable[[EngineClient, Puppet], Awaitable[None]],
    *,
    load_text: Callable[[], TextPipeline] = load_text,
    **config: Any,
) -> None:
    """Run a test with a started client of a Puppet."""

    async def run() -> None:
        core = Puppet()
        client = EngineClient(core, EngineConfig(**config), load_text)
        await client.start(lambda message: None)
        await test(client, core)
        await client.close()

    asyncio.run(run())


def with_fake(test: Callable[[EngineClient], Awaitable[None]], **behaviour: Any) -> None:
    """Run a test with a started client of a FakeCore."""

    async def run() -> None:
        client = fake_client(**behaviour)
        await client.start(lambda message: None)
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(run())
