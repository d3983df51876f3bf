from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from inference.errors import GrammarRefused, Overloaded
from inference.grammar.compiler import CACHED_GRAMMARS, GrammarCompiler
from inference.grammar.maker import MakerHere
from inference.grammar_limits import GrammarLimits
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.structured.corpora import Judge
from tests.structured.hostile import grammars

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    # The clock is for what nobody foresaw: it must not be what refuses these, however busy the machine is
    compiler = GrammarCompiler(MakerHere(Judge().vocabulary), GrammarLimits(seconds=100))
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", grammars())
async def test_a_hostile_grammar_is_refused_or_ready_within_its_limit(
    name: str, compiler: GrammarCompiler
) -> None:
    grammar, began = grammars()[name], time.process_time()
    (answer,) = await asyncio.gather(compiler.compile(grammar), return_exceptions=True)
    assert time.process_time() - began < GrammarLimits().seconds
    if isinstance(answer, BaseException):
        assert type(answer) is GrammarRefused
        assert len(str(answer)) < 700
        assert "takes more than" not in str(answer)  # by its work, not by the clock
    else:
        walk(answer)


async def test_a_flood_of_grammars_leaves_no_more_than_the_cache_holds(compiler: GrammarCompiler) -> None:
    for at in range(CACHED_GRAMMARS + 20):
        schema = {"const": f"value {at}"}
        await compiler.compile(Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema)))
    assert len(compiler._cache) == CACHED_GRAMMARS


async def test_others_compile_while_hostile_grammars_do(compiler: GrammarCompiler) -> None:
    hostile = [asyncio.create_task(compiler.compile(grammar)) for grammar in grammars().values()]
    friendly = await compiler.compile(Grammar(kind=GrammarKind.REGEX, source="yes|no"))
    assert friendly.start().error is None
    answers = await asyncio.gather(*hostile, return_exceptions=True)
    failed = {type(answer) for answer in answers if isinstance(answer, BaseException)}
    assert failed <= {GrammarRefused, Overloaded}  # they queue for one thread


def walk(grammar: CompiledGrammar) -> None:
    """Write a text of some tokens; where the grammar gives up, it says so."""
    draw, mask, matcher = random.Random(3), np.zeros(64, dtype=np.uint32), grammar.start()
    for _ in range(40):
        matcher.fill_mask(mask)
        choices = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if matcher.error is not None or not matcher.accept(int(draw.choice(choices))) or matcher.finished:
            break
    else:
        assert choices.size
