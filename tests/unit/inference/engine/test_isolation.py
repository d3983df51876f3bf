"""Whatever raises in the work for one request, even a panic of native code, fails that request alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inference.errors import InferenceError
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.grammar import build, maker
from inference.text.tokenizer import FastTokenizer
from inference.types import Grammar, GrammarKind, Request

pytestmark = pytest.mark.anyio

BAD = "the bad one"


class Panic(BaseException):
    """As what native libraries raise, none that `except Exception` takes."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def once(works: Callable[..., Any], error: BaseException, is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """Return what works, but for the bad one."""

    def work(*given: Any, **named: Any) -> Any:
        if is_bad(*given):
            raise error
        return works(*given, **named)

    return work


def break_tokenizer(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    broken = once(FastTokenizer.encode, error, lambda _, text: BAD in text)
    patch.setattr(FastTokenizer, "encode", broken)


def break_compiler(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    broken = once(build.compile_source, error, lambda _, source, __: BAD in str(source))
    patch.setattr(maker, "compile_source", broken)


def asked(id: str, words: str) -> Request:
    grammar = Grammar(kind=GrammarKind.REGEX, source=f"({words}|yes)")
    return Request(id=id, prompt=words, max_new_tokens=30, grammar=grammar)


@pytest.mark.parametrize("error", [RuntimeError("by accident"), Panic("of native code")])
@pytest.mark.parametrize("break_it", [break_tokenizer, break_compiler])
async def test_a_fault_in_the_work_for_one_request_is_told_it_and_nobody_else(
    break_it: Callable[[pytest.MonkeyPatch, BaseException], None],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = fake_client()
    await client.start(lambda line: None)
    break_it(monkeypatch, error)
    try:
        good = [asyncio.create_task(text_of(client, asked(str(at), f"no {at}"))) for at in range(4)]
        with pytest.raises((InferenceError, RuntimeError)):
            await text_of(client, asked("bad", BAD))
        assert all(await asyncio.gather(*good))
        assert await text_of(client, asked("after", "no more"))
        assert client._running == {}
    finally:
        await client.close()


async def text_of(client: EngineClient, request: Request) -> str:
    generation = await client.submit(request)
    events = await generation.collect()
    assert events[-1].finish is not None
    return events[-1].finish.text
