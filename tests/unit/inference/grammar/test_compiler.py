from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from inference.errors import GenerationFailed, GrammarRefused, Overloaded
from inference.grammar import maker as module
from inference.grammar.build import Source, compile_source
from inference.grammar.compiled import LarkGrammar
from inference.grammar.compiler import GrammarCache, GrammarCompiler
from inference.grammar.maker import MakerHere
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.unit.inference.grammar.vocabularies import VOCABULARY, follows, regex

pytestmark = pytest.mark.anyio
NUMBER_LARK = "start: /[0-9]+/"
NUMBER = Grammar(kind=GrammarKind.REGEX, source="[0-9]+", member="parameters.grammar.value")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(MakerHere(VOCABULARY))
    yield compiler
    compiler.close()


class Builds:
    """Stands before `compile_source`: notes who compiles what, and can be made to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[str] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()
        monkeypatch.setattr(module, "compile_source", self)

    def __call__(self, vocabulary: GrammarVocabulary, source: Source, limits: GrammarLimits) -> LarkGrammar:
        self.sources.append(source.lark)
        self.threads.add(threading.current_thread().name)
        assert self.go_on.wait(20)
        return compile_source(vocabulary, source, limits)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builds]:
    builds = Builds(monkeypatch)
    yield builds
    builds.go_on.set()


async def test_all_kinds_of_grammars_compile(compiler: GrammarCompiler) -> None:
    sources = {
        GrammarKind.REGEX: "[0-9]+",
        GrammarKind.JSON_SCHEMA: '{"type": "integer"}',
        GrammarKind.LARK: "start: /[0-9]+/",
    }
    for kind, source in sources.items():
        compiled = await compiler.compile(Grammar(kind=kind, source=source))
        assert isinstance(compiled, LarkGrammar)
        assert follows(compiled, "12")
        assert not follows(compiled, "a")


async def test_a_refusal_names_the_requests_own_member(compiler: GrammarCompiler) -> None:
    for member in ("response_format.value", "grammar.value"):
        bad = Grammar(
            kind=GrammarKind.JSON_SCHEMA, source='{"items": {"not": {"type": "null"}}}', member=member
        )
        with pytest.raises(GrammarRefused, match=f"^grammar is not valid: `{member}` at /items/not: "):
            await compiler.compile(bad)


async def test_a_grammar_compiles_once_on_a_thread_of_its_own(
    builds: Builds, compiler: GrammarCompiler
) -> None:
    builds.go_on.clear()
    requests = [asyncio.create_task(compiler.compile(NUMBER)) for _ in range(5)]
    await asyncio.sleep(0)
    builds.go_on.set()
    first, *others = await asyncio.gather(*requests)
    assert all(other is first for other in others)
    assert await compiler.compile(NUMBER) is first
    assert builds.sources == [NUMBER_LARK]
    assert all(name.startswith("grammar") for name in builds.threads)


async def test_the_same_source_in_another_language_is_another_grammar(compiler: GrammarCompiler) -> None:
    as_regex = await compiler.compile(Grammar(kind=GrammarKind.REGEX, source="true"))
    as_schema = await compiler.compile(Grammar(kind=GrammarKind.JSON_SCHEMA, source="true"))
    assert isinstance(as_regex, LarkGrammar)
    assert isinstance(as_schema, LarkGrammar)
    assert not follows(as_regex, "null")
    assert follows(as_schema, "null")


async def test_all_who_wait_for_a_bad_grammar_are_refused(builds: Builds, compiler: GrammarCompiler) -> None:
    bad = Grammar(kind=GrammarKind.REGEX, source="(")
    builds.go_on.clear()
    waiting = [asyncio.create_task(compiler.compile(bad)) for _ in range(3)]
    await asyncio.sleep(0)
    builds.go_on.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [GrammarRefused] * 3
    assert builds.sources == ["start: /(/"]
    with pytest.raises(GrammarRefused):
        await compiler.compile(bad)


async def test_the_event_loop_goes_on_while_a_grammar_compiles(
    builds: Builds, compiler: GrammarCompiler
) -> None:
    builds.go_on.clear()
    request = asyncio.create_task(compiler.compile(NUMBER))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not request.done()
    builds.go_on.set()
    await request


async def test_a_compilation_past_its_time_is_waited_for_no_longer(builds: Builds) -> None:
    compiler = GrammarCompiler(MakerHere(VOCABULARY), GrammarLimits(seconds=0.2))
    builds.go_on.clear()
    with pytest.raises(GrammarRefused, match=r"compiling it takes more than 0\.2 seconds"):
        await compiler.compile(NUMBER)
    builds.go_on.set()
    await asyncio.wait_for(_until(lambda: len(compiler._cache) == 1), 20)
    await compiler.compile(NUMBER)
    assert builds.sources == [NUMBER_LARK]
    compiler.close()


async def test_no_thread_in_time_is_overload_and_leaves_no_work_behind(builds: Builds) -> None:
    compiler = GrammarCompiler(MakerHere(VOCABULARY), GrammarLimits(seconds=0.2), workers=1)
    builds.go_on.clear()
    first = asyncio.create_task(compiler.compile(NUMBER))
    await asyncio.wait_for(_until(lambda: bool(builds.sources)), 20)
    with pytest.raises(Overloaded):
        await compiler.compile(Grammar(kind=GrammarKind.REGEX, source="b"))
    builds.go_on.set()
    await asyncio.gather(first, return_exceptions=True)
    await compiler.compile(Grammar(kind=GrammarKind.REGEX, source="c"))
    assert builds.sources == [NUMBER_LARK, "start: /c/"]
    compiler.close()


async def test_a_large_grammar_keeps_no_thread_from_a_small_one(
    builds: Builds, compiler: GrammarCompiler
) -> None:
    builds.go_on.clear()
    large = [asyncio.create_task(compiler.compile(numbered(at))) for at in range(3)]
    await asyncio.wait_for(_until(lambda: bool(builds.sources)), 20)
    small = asyncio.create_task(compiler.compile(NUMBER))
    await asyncio.wait_for(_until(lambda: NUMBER_LARK in builds.sources), 20)
    assert len(builds.sources) == 2
    builds.go_on.set()
    await asyncio.gather(small, *large)


async def test_a_request_that_leaves_takes_nothing_from_the_others(
    builds: Builds, compiler: GrammarCompiler
) -> None:
    builds.go_on.clear()
    leaving = asyncio.create_task(compiler.compile(NUMBER))
    staying = asyncio.create_task(compiler.compile(NUMBER))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    builds.go_on.set()
    assert await staying is await compiler.compile(NUMBER)


async def test_a_grammar_that_nobody_waits_for_any_more_can_be_asked_for_again(builds: Builds) -> None:
    compiler = GrammarCompiler(MakerHere(VOCABULARY), workers=1)
    builds.go_on.clear()
    blocking = asyncio.create_task(compiler.compile(NUMBER))
    await asyncio.wait_for(_until(lambda: bool(builds.sources)), 20)
    again = Grammar(kind=GrammarKind.REGEX, source="b")
    leaving = asyncio.create_task(compiler.compile(again))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    staying = asyncio.create_task(compiler.compile(again))
    builds.go_on.set()
    await asyncio.gather(blocking, staying)
    assert builds.sources == [NUMBER_LARK, "start: /b/"]
    compiler.close()


async def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache: GrammarCache[LarkGrammar] = GrammarCache(grammars=3, source_bytes=100)
    grammar = regex("a")
    for name in "abc":
        cache.put(("regex", name), grammar)
    assert cache.get(("regex", "a")) is grammar
    cache.put(("regex", "d"), grammar)
    assert [name for name in "abcd" if cache.get(("regex", name))] == ["a", "c", "d"]
    cache.put(("regex", "x" * 98), grammar)  # and two bytes more
    assert len(cache) == 3
    cache.put(("regex", "y" * 101), grammar)
    assert len(cache) == 0


def numbered(number: int) -> Grammar:
    """Return a large grammar."""
    source = json.dumps({"const": number, "description": "x" * 10_000})
    return Grammar(kind=GrammarKind.JSON_SCHEMA, source=source)


async def _until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - what is waited for happens on a thread
        await asyncio.sleep(0.005)


class Broken(MakerHere):
    """Fails before it begins, as where no process can be had."""

    def make(self, grammar: Grammar, limits: GrammarLimits, begun: Callable[[], None]) -> CompiledGrammar:
        raise GenerationFailed("The process that compiles grammars can't be started")


async def test_what_fails_before_it_begins_is_told_at_once() -> None:
    compiler = GrammarCompiler(Broken(VOCABULARY), GrammarLimits(seconds=60))
    try:
        async with asyncio.timeout(10):
            with pytest.raises(GenerationFailed, match="can't be started"):
                await compiler.compile(NUMBER)
    finally:
        compiler.close()
