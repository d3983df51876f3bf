"""No exception's message gets into a log, however it is raised, unless `--log-prompts` asks for it."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
import pytest

from handlers.http.responses import ContractViolation, log_violation
from handlers.routes.operations import OPERATIONS
from handlers.serving.logs import LEVELS, WITHHELD, configure
from inference.frontend.client import EngineClient
from inference.grammar.masks import Endings, Guide
from inference.ipc.control import relay, to_logged
from inference.outline import outline
from inference.text.tokenizer import FastTokenizer
from inference.types import CoreFailure, Frame, Request
from tests.support import live_server, logging_kept
from tests.unit.inference.puppet import Puppet, with_puppet

SECRET = "the-lighthouse-keeper"

pytestmark = pytest.mark.parametrize("json_output", [False, True])


class Panic(BaseException):
    """What native code raises where it gives up."""


@pytest.fixture
def logged(json_output: bool) -> Iterator[Callable[[bool], io.StringIO]]:
    """Return a function that begins a log, with prompts or not; logging is given back as it was."""

    def begin(prompts: bool) -> io.StringIO:
        stream = io.StringIO()
        configure("trace", json_output=json_output, prompts=prompts, stream=stream)
        logging.root.setLevel(logging.DEBUG)
        return stream

    with logging_kept():
        yield begin


Logged = Callable[[bool], io.StringIO]


def seen(logged: Logged, work: Callable[[], object]) -> str:
    """Return what the log says without prompts, after seeing that it says the secret with them."""
    told = logged(True)
    work()
    assert SECRET in told.getvalue()
    assert WITHHELD not in told.getvalue()
    withheld = logged(False)
    work()
    text = withheld.getvalue()
    assert SECRET not in text
    assert 'File \\"' in text or 'File "' in text or "GenerationFailed" in text or "Violation" in text
    assert WITHHELD in text
    return text


def test_a_handlers(logged: Logged) -> None:
    async def broken(*_: object) -> NoReturn:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            error.add_note(SECRET)
            raise ExceptionGroup(SECRET, [ValueError(SECRET), UnicodeError(SECRET)]) from error

    def ask() -> None:
        with live_server(operations={**OPERATIONS, "generate": broken}) as live:
            answer = live.post("/generate", {"inputs": SECRET})
        assert (answer.status_code, SECRET in answer.text) == (500, False)

    text = seen(logged, ask)
    for part in ("KeyError", "ExceptionGroup", "of which 2", "UnicodeError", "in broken", "direct cause"):
        assert part in text


def test_a_tokenizers(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(self: object, text: str, **_: object) -> NoReturn:
        raise Panic(f"byte index 1 is not a char boundary of `{text}`")

    def ask() -> None:
        with live_server() as live, monkeypatch.context() as patched:
            patched.setattr(FastTokenizer, "encode", panic)
            answer = live.post("/generate", {"inputs": SECRET})
        assert (answer.status_code, SECRET in answer.text) == (424, False)

    text = seen(logged, ask)
    assert "the tokenizer panicked" in text
    assert "in panic" in text


class Broken:
    """A matcher that quotes what it was given."""

    finished, error = False, None

    def accept(self, token_id: int) -> bool:
        raise Panic(SECRET)

    def fill_mask(self, mask: np.ndarray) -> None:
        raise Panic(SECRET)


def test_a_grammars(logged: Logged) -> None:
    def follow() -> str:
        guide = Guide(Broken(), Endings(70, (69,)), lambda guide: guide.compute())
        guide.begin()
        assert guide.failure is not None
        return guide.failure

    def answer() -> None:
        failure = follow()

        async def check(client: EngineClient, core: Puppet) -> None:
            generation = await client.submit(Request(id="a", prompt="Hi"))
            core.sink(Frame((CoreFailure("a", failure, own=True),)))
            with pytest.raises(Exception, match=SECRET):  # whose grammar it is may know
                async for _ in generation:
                    pass

        with_puppet(check)

    assert "in fill_mask" in seen(logged, follow)
    text = seen(logged, answer)
    assert "request a failed" in text


def test_a_detokenizers(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise UnicodeEncodeError("utf-8", SECRET, 0, 1, SECRET)

    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        monkeypatch.setattr("inference.frontend.client.EventAssembler.event", fail)
        core.say("a", "x")
        with pytest.raises(Exception, match="Detokenisation"):
            async for _ in generation:
                pass
        monkeypatch.undo()

    assert "UnicodeEncodeError" in seen(logged, lambda: with_puppet(check))


def test_one_of_the_engines_process(logged: Logged) -> None:
    def cross() -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            record = logging.LogRecord("inference.engine.engine", 40, "x.py", 1, "failed", None, None)
            record.exc_info = (KeyError, error, error.__traceback__)
        relay(to_logged(record))

    text = seen(logged, cross)
    assert "KeyError" in text
    assert "in cross" in text


def test_one_that_nobody_waits_for(logged: Logged) -> None:
    async def lose() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(fail, SECRET)  # asyncio shows arguments, too
        task = asyncio.ensure_future(asyncio.to_thread(fail, SECRET))
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0.01)

    def fail(text: str) -> NoReturn:
        raise ValueError(text)

    text = seen(logged, lambda: asyncio.run(lose()))
    assert "never retrieved" in text
    assert "Exception in callback" in text


def test_a_wrong_answer(logged: Logged) -> None:
    violation = ContractViolation("generate", f'generated_text: expected null, got "{SECRET}"')
    text = seen(logged, lambda: log_violation(violation))
    assert "generate: a response is not what the contract says" in text


@pytest.mark.parametrize("level", sorted(set(LEVELS) - {"off"}))
def test_no_level_tells_more(logged: Logged, level: str) -> None:
    stream = logged(False)
    for name in ("parley.x", "uvicorn.error", "elsewhere"):
        logging.getLogger(name).setLevel(LEVELS[level])
        try:
            raise ValueError(SECRET)
        except ValueError:
            logging.getLogger(name).log(max(LEVELS[level], 10), "failed", exc_info=True)
        finally:
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert (stream.getvalue().count(WITHHELD), SECRET in stream.getvalue()) == (3, False)


def test_outlines_of_odd_chains_end(json_output: bool) -> None:
    first, second = ValueError(SECRET), KeyError(SECRET)
    first.__cause__, second.__cause__ = second, first
    assert outline(first).count("direct cause") == 1
    deep: Exception = first
    for _ in range(5000):
        deep = ExceptionGroup(SECRET, [deep])
    assert SECRET not in outline(deep)

    class Mute(Exception):
        def __str__(self) -> str:
            raise AssertionError("its words are not asked for")

    assert outline(Mute()).endswith("Mute")
