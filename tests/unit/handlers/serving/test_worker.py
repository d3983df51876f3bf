"""What a worker is told when it starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from handlers.serving.worker import Post, held
from handlers.settings.table import Settings
from inference.config import Found
from tests.unit.handlers.serving.test_workers import FAKE, PATIENCE_SECONDS, server, told

TAKEN = """
import os
from handlers.routes import aliases
os.environ['AIP_PREDICT_ROUTE'] = '/generate'
aliases.check = lambda settings: None
"""  # so that only the workers find it


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(api_key="s3cret", cors_allow_origin=("a", "b"), log_colorize=True, watermark_gamma=0.25),
    ],
)
def test_all_that_it_is_told_arrives(settings: Settings) -> None:
    post = Post(
        number=1,
        workers=2,
        engine="/run/engine",
        listening=3,
        places=4,
        owners=5,
        accounts=6,
        board=7,
        settings=settings,
    )
    founds = (None, Found("a" * 40, None), Found("b" * 40, "x"), Found(None, None, {"one": "c" * 40}))
    for each in (replace(post, found=found) for found in founds):
        line = each.encode()
        assert line.count(b"\n") == 1
        assert Post.decode(line) == each
    assert post.descriptors == (3, 4, 5, 6, 7)


async def start(scope: Scope, receive: Receive, send: Send) -> None:
    """Be an application that has started at once."""
    await send({"type": "lifespan.startup.complete"})


@pytest.mark.parametrize(("seconds", "loads"), [(60.0, True), (0.01, False)])
def test_one_that_comes_late_has_started_once_it_has_loaded_or_after_a_while(
    seconds: float, loads: bool
) -> None:
    async def run() -> None:
        loaded, sent = asyncio.Event(), list[Message]()

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("nothing is received")

        starting = asyncio.ensure_future(held(start, loaded, seconds)({"type": "lifespan"}, receive, send))
        await asyncio.sleep(0)
        assert not sent
        if loads:
            loaded.set()
        await asyncio.wait_for(starting, 30)
        assert sent == [{"type": "lifespan.startup.complete"}]

    asyncio.run(run())


def test_a_setting_that_a_worker_finds_wrong_is_told_as_it_is_with_one_process() -> None:
    with server(code=TAKEN + FAKE, ready=False) as live:
        assert live.process.wait(PATIENCE_SECONDS) == 1
    assert told(live, "AIP_PREDICT_ROUTE=/generate is the address of something else: choose another") == 1
    assert told(live, "Traceback") == told(live, "handled by nobody") == 0
