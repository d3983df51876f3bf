"""Schemas drawn at random, with all that joins, refers and chooses, beside two oracles of JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import jsonschema
import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from inference.grammar.meaning import as_meant
from tests.unit.inference.grammar.vocabularies import schema, written

NAMES = ["a", "b", "not"]
JOINING = ["allOf", "anyOf", "oneOf"]
Schema = dict[str, Any]
Schemas = st.SearchStrategy[Schema]

names = st.sampled_from(NAMES)
leaves: Schemas = st.sampled_from(
    [{}, {"type": "integer"}, {"const": 1}, {"enum": ["x", "y"], "type": "string"}, {"type": "object"}]
)
references: Schemas = st.sampled_from(["#/$defs/D", "#/$defs/E", "#"]).map(lambda found: {"$ref": found})


def objects(inner: Schemas, kinds: Schema) -> Schemas:
    """Return schemas with properties, some of them with words that speak of others."""
    listed = st.dictionaries(names, inner, min_size=1, max_size=2)
    plain = listed.map(lambda found: {"properties": found, **kinds})
    strict = listed.map(lambda found: {"properties": found, "required": [*found], **kinds})
    more = st.fixed_dictionaries(
        {},
        optional={
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.just(False) | inner,
            "patternProperties": st.dictionaries(st.just("^b"), inner, max_size=1),
            "minProperties": st.just(2),
            "$ref": st.sampled_from(["#/$defs/D", "#/$defs/E"]),
        },
    )
    return plain | strict | st.builds(lambda one, other: {**one, **other}, plain, more)


def tagged(inner: Schemas, kinds: Schema) -> Schemas:
    """Return unions of objects that are told apart by a tag."""

    def one(tag: str) -> Schemas:
        listed = st.dictionaries(names, inner, max_size=2).map(lambda found: {**found, "a": {"const": tag}})
        return listed.map(lambda found: {"properties": found, "required": ["a"], **kinds})

    return st.tuples(one("x"), one("y")).map(lambda pair: {"oneOf": [*pair]})


@st.composite
def parts(draw: st.DrawFn, depth: int, kinds: Schema, words: Sequence[str]) -> Schema:
    """Return schemas up to a depth; `kinds` is the type of those with properties."""
    if not depth:
        return draw(leaves | references)
    inner = parts(depth - 1, kinds, words)
    simple = st.sampled_from([{}, {"type": "integer"}])
    shallow = objects(simple | objects(st.just({}), kinds) | references, kinds)
    several = st.lists(shallow | references | inner, min_size=1, max_size=2)
    form = draw(st.sampled_from(["object", "tagged", "joined", "beside", *words]))
    if form == "object":
        return draw(objects(inner, kinds))
    if form == "tagged":
        return draw(tagged(inner, kinds))
    if form in words:
        return {form: draw(inner)}
    joined = {draw(st.sampled_from(JOINING)): draw(several)}
    return joined if form == "joined" else {**draw(shallow), **joined}


def wholes(kinds: Schema, words: Sequence[str] = ("items", "not")) -> Schemas:
    """Return whole documents."""
    defined = st.fixed_dictionaries({name: parts(1, kinds, words) for name in "DE"})
    return st.builds(lambda part, found: {**part, "$defs": found}, parts(2, kinds, words), defined).filter(
        lambda whole: not is_endless(whole)
    )


OBJECT = {"type": "object"}


def objects_of(values: Sequence[Any], most: int) -> Iterator[Schema]:
    """Yield all objects with so many properties at most, and these values."""
    for count in range(most + 1):
        for chosen in combinations(NAMES, count):
            for each in product(values, repeat=count):
                yield dict(zip(chosen, each, strict=True))


INNER = [1, "x", {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 1}, {"a": "x", "b": 1}]
INSTANCES = [
    1,
    "x",
    *objects_of(INNER, 2),
    *objects_of([1, "x"], 3),
    [],
    [1],
    *([each] for each in INNER[2:]),
]


def is_endless(whole: Schema) -> bool:
    """Return whether a schema refers to itself for one and the same instance."""

    def comes_back(part: Any, path: tuple[int, ...] = ()) -> bool:
        if not isinstance(part, dict):
            return False
        below = [each for word in JOINING for each in part.get(word, ())]
        below += [part["not"]] if "not" in part else []
        if "$ref" in part:
            below.append(whole if part["$ref"] == "#" else whole["$defs"][part["$ref"][-1]])
        return id(part) in path or any(comes_back(each, (*path, id(part))) for each in below)

    return any(map(comes_back, everything(whole)))


def everything(value: Any) -> Iterator[Any]:
    """Yield a value, and all that is in it."""
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everything(each)


def smaller(value: Any) -> Iterator[Any]:
    """Yield a value, and it with any of its properties left out."""
    if isinstance(value, list):
        yield from map(list, product(*map(smaller, value)))
    elif isinstance(value, dict):
        for each in product(*([*smaller(found), None] for found in value.values())):
            yield {name: found for name, found in zip(value, each, strict=True) if found is not None}
    else:
        yield value


LESS = [[*smaller(each)] for each in INSTANCES]


@given(wholes({}) | wholes(OBJECT))
def test_nothing_is_valid_that_the_letter_forbids(whole: Schema) -> None:
    meant, letter = (jsonschema_rs.validator_for(each) for each in (as_meant(whole), whole))
    allowed = [each for each in INSTANCES if meant.is_valid(each)]
    assert all(map(letter.is_valid, allowed))
    assert all(map(jsonschema.Draft202012Validator(whole).is_valid, allowed[-3:]))


@given(wholes(OBJECT))
def test_what_can_be_satisfied_still_can_be(whole: Schema) -> None:
    meant, letter = (jsonschema_rs.validator_for(each) for each in (as_meant(whole), whole))
    for each, less in zip(INSTANCES, LESS, strict=True):
        assert not letter.is_valid(each) or any(map(meant.is_valid, less))


@settings(max_examples=40)
@given(wholes({}, ("items",)), st.integers(0, 99))
def test_what_is_written_is_valid_by_the_letter(whole: Schema, seed: int) -> None:
    try:
        grammar = schema(as_meant(whole))
    except GrammarFault:
        return
    text = written(grammar, seed)
    assert text is None or jsonschema_rs.is_valid(whole, json.loads(text))
