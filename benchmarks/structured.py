"""Measure structured output: what becomes of 1,467 schemas, of hostile grammars, and of memory.

    python -m benchmarks.structured [--write]

Schemas and instances are those of JSON-Schema-Test-Suite and MaskBench, which lie beside the
repository; each is compiled by the server's compiler for the embedded model's vocabulary, and each
instance is read token by token, with a mask before each. Then a vocabulary of 152,000 tokens is
made, and the cache is flooded. Times are wall clock; other work on the machine shows in the largest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import RESULTS, about, machine
from inference.errors import GrammarRefused
from inference.grammar.compiler import GrammarCompiler
from inference.grammar.keywords import UNSUPPORTED
from inference.grammar.maker import MakerHere
from inference.grammar.vocabulary import GrammarVocabulary
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.structured.corpora import MISSING, Judge, Verdict, load, present
from tests.structured.hostile import grammars

LARGE_VOCABULARY = 151_936
WALK_TOKENS = 60
Result = dict[str, Any]


def main() -> None:
    """Measure, print the tables, and write them down if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the result beside the others")
    arguments = parser.parse_args()
    if not present():
        sys.exit(MISSING)
    judge = Judge()
    result: Result = {"corpora": corpora(asyncio.run(judge.judge(load())))}
    result["hostile"] = asyncio.run(hostile(judge.vocabulary))
    result["cache"] = asyncio.run(flood(judge.vocabulary))
    result["large vocabulary"] = asyncio.run(large_vocabulary())
    for name, table in result.items():
        print(f"\n{name}")
        for line in lines(table):
            print(f"  {line}")
    if arguments.write:
        path = RESULTS / f"structured-{machine()}.json"
        path.write_text(json.dumps({**about(), **result}, indent=2) + "\n")


def corpora(verdict: Verdict) -> Result:
    """Return the figures of a verdict."""
    valid, invalid = verdict.instances[True], verdict.instances[False]
    return {
        "schemas": verdict.compiled + len(verdict.refused),
        "compiled": verdict.compiled,
        "refused": dict(Counter(map(reason, verdict.refused.values())).most_common()),
        "valid instances accepted": f"{valid - len(verdict.lost)} of {valid}",
        "valid share": round(1 - len(verdict.lost) / valid, 4),
        "of them in another order of properties": len(verdict.reordered),
        "invalid instances accepted": f"{len(verdict.wrong)} of {invalid}",
        "compile ms": quantiles(verdict.compile_seconds, 1e3),
        "mask us": quantiles(verdict.mask_seconds, 1e6),
    }


def reason(message: str) -> str:
    """Return the kind of a refusal, which is the keyword that isn't supported or what is wrong with it."""
    found = re.search(r" at (\S*): ", message)
    names = [part for part in (found[1] if found else "").split("/") if part and not part.isdecimal()]
    keyword = names[-1] if names else "schema"
    if keyword in UNSUPPORTED:
        return keyword
    return keyword if keyword in ("$ref", "format", "oneOf", "$id") else f"{keyword}: other"


async def hostile(vocabulary: GrammarVocabulary) -> Result:
    """Return what became of each hostile grammar, and in which time."""
    compiler, table = GrammarCompiler(MakerHere(vocabulary)), {}
    for name, grammar in grammars().items():
        began = time.perf_counter()
        try:
            compiled = await compiler.compile(grammar)
        except GrammarRefused:
            outcome: Result = {"outcome": "refused"}
        else:
            outcome = {"outcome": "compiled", "mask ms": quantiles(walk(compiled, vocabulary), 1e3)}
        outcome["ms"] = round(1e3 * (time.perf_counter() - began), 1)
        table[name] = {"kB": round(len(grammar.source) / 1024, 1), **outcome}
    compiler.close()
    return table


async def flood(vocabulary: GrammarVocabulary) -> Result:
    """Return the memory that a cache full of the largest grammars takes."""
    compiler = GrammarCompiler(MakerHere(vocabulary))
    before, refused = resident(), 0
    for at in range(160):
        names = [f"{at}_{number}" for number in range(600)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "string", "maxLength": at + 9} for name in names},
        }
        source = json.dumps({**schema, "required": names})
        try:
            compiled = await compiler.compile(Grammar(kind=GrammarKind.JSON_SCHEMA, source=source))
            walk(compiled, vocabulary)
        except GrammarRefused:
            refused += 1
    held = compiler._cache
    result = {"grammars sent": 160, "refused": refused, "kB each": len(source) // 1024, "kept": len(held)}
    result["MB in all"] = resident() - before
    compiler.close()
    return result


async def large_vocabulary() -> Result:
    """Return what a vocabulary as of large models costs."""
    tokens = made_vocabulary(LARGE_VOCABULARY)
    before, began = resident(), time.perf_counter()
    end = len(tokens) - 1
    vocabulary = GrammarVocabulary(tokens, frozenset(range(end - 20, end)), (end,))
    result: Result = {
        "tokens": len(tokens),
        "ms to make": round(1e3 * (time.perf_counter() - began), 1),
        "MB": resident() - before,
    }
    compiler = GrammarCompiler(MakerHere(vocabulary))
    schemas: dict[str, Any] = {
        "any object": {"type": "object"},
        "string of a length": {"type": "string", "maxLength": 500},
        "pattern": {"type": "string", "pattern": "^[a-z]+( [a-z]+){3,100}$"},
        "enum of 3,000": {"enum": [f"value {at}" for at in range(3_000)]},
    }
    for name, schema in schemas.items():
        began = time.perf_counter()
        compiled = await compiler.compile(Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema)))
        spent = round(1e3 * (time.perf_counter() - began), 1)
        masks = [seconds for seed in range(5) for seconds in walk(compiled, vocabulary, seed)]
        result[name] = {"compile ms": spent, "mask us": quantiles(masks, 1e6)}
    compiler.close()
    return result


def walk(grammar: CompiledGrammar, vocabulary: GrammarVocabulary, seed: int = 3) -> list[float]:
    """Return the seconds of each mask on the way of a random text."""
    draw, matcher, seconds = random.Random(seed), grammar.start(), []
    mask = np.zeros(vocabulary.words, dtype=np.uint32)
    for _ in range(WALK_TOKENS):
        began = time.perf_counter()
        matcher.fill_mask(mask)
        seconds.append(time.perf_counter() - began)
        choices = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if matcher.error is not None or not matcher.accept(int(draw.choice(choices))) or matcher.finished:
            break
    return seconds


def made_vocabulary(size: int) -> list[bytes]:
    """Return tokens as byte-level BPE makes them: bytes, words and what is before them, other scripts."""
    draw = random.Random(0)
    tokens = {bytes([value]) for value in range(256)}
    letters, weights = "etaoinshrdlcumwfgypbvk", range(22, 0, -1)
    marks = ['": "', '","', '":', '{"', '"}', "],", "\n\n", "  ", "    ", ");", "=", "_", "->"]
    while len(tokens) < size:
        word = "".join(draw.choices(letters, weights, k=draw.choice([2, 3, 4, 5, 6, 8, 10])))
        kind = draw.random()
        if kind < 0.45:
            word = " " + word
        elif kind < 0.55:
            word = draw.choice(marks) + word
        elif kind < 0.65:
            word = "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(draw.choice([1, 2, 3])))
        elif kind < 0.7:
            word = str(draw.randrange(1_000))
        tokens.add(word.encode())
    return sorted(tokens, key=lambda token: (len(token), token))


def quantiles(seconds: list[float], scale: float) -> Result:
    """Return median, 99th percentile and maximum."""
    ranked = sorted(seconds)
    cut = {"p50": len(ranked) // 2, "p99": int(0.99 * len(ranked)), "max": -1}
    return {name: round(scale * ranked[at], 2) for name, at in cut.items()}


def resident() -> int:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 // 2**20


def lines(table: Result) -> Iterator[str]:
    """Yield a table's lines."""
    for name, value in table.items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {_inline(inner)}" for key, inner in value.items())
        yield f"{name:40} {shown}"


def _inline(value: Any) -> str:
    return " / ".join(map(str, value.values())) if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    main()
