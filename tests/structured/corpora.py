"""1,467 JSON Schemas with 4,481 instances, of JSON-Schema-Test-Suite and MaskBench, judged by grammars.

They lie beside the repository. An instance passes if the grammar lets it be written in any order of
its properties: the order is the grammar's and says nothing about validity. Whole numbers are
written as integers, which are the same to JSON Schema.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from inference.config import ModelConfig
from inference.errors import GrammarRefused
from inference.grammar.compiler import GrammarCompiler
from inference.grammar.maker import MakerHere
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.text.files import find_files
from inference.text.tokenizer import load_tokenizer
from inference.types import CompiledGrammar, Grammar, GrammarKind

CORPORA = Path(__file__).parents[2] / "../shared/reference/corpora"
FILES = ("structured_jsts.jsonl.gz", "structured_maskbench.jsonl.gz")
MISSING = "the schemas are not at ../shared/reference/corpora"
MEMBER = "grammar.value"
ORDERS = {True: 1000, False: 24}  # of one instance that are tried, by its validity
PERMUTED = 4  # properties of an object that is permuted

Order = dict[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with instances that are valid or not."""

    name: str
    schema: Any
    instances: tuple[tuple[Any, bool, str], ...]  # data, whether valid, description


@dataclass(slots=True)
class Verdict:
    """What became of all cases."""

    compiled: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # case -> message
    instances: Counter[bool] = field(default_factory=Counter)  # of schemas that compiled, by validity
    reordered: list[str] = field(default_factory=list)  # valid ones that pass in another order only
    lost: list[str] = field(default_factory=list)  # valid ones that don't pass
    wrong: list[str] = field(default_factory=list)  # invalid ones that do
    failures: list[str] = field(default_factory=list)  # texts in which a grammar gave up
    compile_seconds: list[float] = field(default_factory=list)
    compile_work: list[float] = field(default_factory=list)  # the same in seconds of a processor
    # asyncio.run has a verdict told once too often, in which these are millions
    mask_seconds: list[float] = field(default_factory=list, repr=False)


def present() -> bool:
    """Return whether the corpora are there."""
    return all((CORPORA / name).exists() for name in FILES)


def load() -> Iterator[Case]:
    """Yield all cases."""
    for name in FILES:
        corpus = name.split("_")[1].split(".")[0]
        with gzip.open(CORPORA / name, "rt") as lines:
            for row in map(json.loads, lines):
                tests = ((test["data"], test["valid"], test["description"]) for test in row["tests"])
                yield Case(f"{corpus} {row['name']}", row["schema"], tuple(tests))


class Judge:
    """Compiles schemas for the embedded model's vocabulary, and reads instances token by token."""

    def __init__(self) -> None:
        config = ModelConfig()
        self._tokenizer = load_tokenizer(find_files(config), config)
        token_bytes = self._tokenizer.token_bytes()
        assert token_bytes is not None
        (self._end,) = self._tokenizer.encode("<|im_end|>", add_special_tokens=False)
        self.vocabulary = GrammarVocabulary(token_bytes, self._tokenizer.special_ids, (self._end,))
        self._mask = np.zeros(self.vocabulary.words, dtype=np.uint32)

    async def judge(self, cases: Iterable[Case]) -> Verdict:
        """Return the verdict on all cases."""
        # What refuses a schema is its work and never the clock, however busy the machine is
        verdict, compiler = Verdict(), GrammarCompiler(MakerHere(self.vocabulary), GrammarLimits(seconds=100))
        for case in cases:
            source = json.dumps(case.schema, ensure_ascii=False)
            grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=source, member=MEMBER)
            began, worked = time.perf_counter(), time.process_time()
            try:
                compiled = await compiler.compile(grammar)
            except GrammarRefused as refused:
                verdict.refused[case.name] = str(refused)
            verdict.compile_seconds.append(time.perf_counter() - began)
            verdict.compile_work.append(time.process_time() - worked)
            if case.name not in verdict.refused:
                verdict.compiled += 1
                self._read_all(compiled, case, verdict)
        compiler.close()
        return verdict

    def _read_all(self, grammar: CompiledGrammar, case: Case, verdict: Verdict) -> None:
        refused: set[tuple[int, ...]] = set()
        for data, valid, description in case.instances:
            verdict.instances[valid] += 1
            passing = (
                at
                for at, text in enumerate(texts(data, case.schema, ORDERS[valid]))
                if self._passes(grammar, text, refused, verdict)
            )
            first = next(passing, None)
            if first is None and not valid:
                continue
            label = f"{case.name}: {description}"
            if first is None:
                verdict.lost.append(label)
            elif not valid:
                verdict.wrong.append(label)
            elif first:
                verdict.reordered.append(label)

    def _passes(
        self, grammar: CompiledGrammar, text: str, refused: set[tuple[int, ...]], verdict: Verdict
    ) -> bool:
        """Return whether a grammar lets a text be written.

        `refused` are beginnings that it doesn't, and becomes more: most orders of an instance's
        properties begin as another did that was refused there, and read once that is read.
        """
        tokens = (*self._tokenizer.encode(text, add_special_tokens=False), self._end)
        if any(tokens[:size] in refused for size in {*map(len, refused)}):
            return False
        matcher = grammar.start()
        for at, token in enumerate(tokens):
            began = time.perf_counter()
            matcher.fill_mask(self._mask)
            verdict.mask_seconds.append(time.perf_counter() - began)
            if matcher.error is not None:
                verdict.failures.append(f"{text[:80]}: {matcher.error}")
            if not self._mask[token // 32] >> (token % 32) & 1:
                refused.add(tokens[: at + 1])
                return False
            assert matcher.accept(token)
        return True


def texts(data: Any, schema: Any, count: int) -> Iterator[str]:
    """Yield an instance as JSON: as it is, as its schema lists properties, and in other orders of them."""
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(listed(schema)))}
    named = {names: tuple(sorted(names, key=lambda name: ranks.get(name, 10**6))) for names in objects(data)}
    for order in islice(chain([{}, named], orders(data)), count):
        yield json.dumps(arranged(data, order), ensure_ascii=False)


def listed(schema: Any) -> Iterator[str]:
    """Yield the properties that a schema lists, anywhere."""
    if isinstance(schema, dict):
        yield from schema["properties"] if isinstance(schema.get("properties"), dict) else ()
    for child in parts(schema):
        yield from listed(child)


def orders(data: Any) -> Iterator[Order]:
    """Yield the orders that properties can have, each the same for all objects with the same ones."""
    kinds = [*dict.fromkeys(names for names in objects(data) if len(names) <= PERMUTED)]
    for order in product(*map(permutations, kinds)):
        yield dict(zip(kinds, order, strict=True))


def objects(data: Any) -> Iterator[tuple[str, ...]]:
    """Yield the properties of each object in a value."""
    if isinstance(data, dict):
        yield tuple(data)
    for child in parts(data):
        yield from objects(child)


def parts(value: Any) -> Iterable[Any]:
    """Return what an object or an array consists of."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def arranged(value: Any, order: Order) -> Any:
    """Return a value with its properties in an order, and whole numbers as integers."""
    if isinstance(value, dict):
        names = order.get(tuple(value), tuple(value))
        return {name: arranged(value[name], order) for name in names}
    if isinstance(value, list):
        return [arranged(child, order) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
