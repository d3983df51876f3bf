"""Whatever a schema's grammar lets be written is valid by the reference validator."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from tests.examples import examples
from tests.unit.inference.grammar.vocabularies import schema, written

NAMES = st.sampled_from(["a", "b", 'c"', "d/e"])
COUNTS = st.integers(min_value=0, max_value=4)


def optional(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


STRINGS = optional(minLength=COUNTS, maxLength=COUNTS, pattern=st.sampled_from(["^a+$", "[0-9]", "x|yz"]))
NUMBERS = optional(
    minimum=st.integers(-50, 50),
    maximum=st.integers(-50, 50) | st.floats(-50, 50, width=16),
    exclusiveMaximum=st.integers(-50, 50),
    multipleOf=st.sampled_from([1, 3, 5, 0.5]),
)
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(["null", "boolean", "integer", "string"])}),
    STRINGS.map(lambda node: {"type": "string", **node}),
    NUMBERS.map(lambda node: {"type": "integer", **node}),
    NUMBERS.map(lambda node: {"type": "number", **node}),
    st.fixed_dictionaries(
        {"enum": st.lists(st.none() | st.integers(-9, 9) | st.text(max_size=3), min_size=1)}
    ),
    st.fixed_dictionaries({"const": st.dictionaries(NAMES, st.integers(0, 3), max_size=2)}),
)


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = optional(
        properties=st.dictionaries(NAMES, inner, max_size=3),
        required=st.lists(NAMES, unique=True, max_size=2),
        additionalProperties=inner,
        minProperties=COUNTS,
        maxProperties=COUNTS,
        patternProperties=st.dictionaries(st.sampled_from(["^x", "^y"]), inner, max_size=2),
    )
    arrays = optional(
        items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=COUNTS, maxItems=COUNTS
    )
    lists = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        objects.map(lambda node: {"type": "object", **node}),
        objects,
        arrays.map(lambda node: {"type": "array", **node}),
        optional(anyOf=lists, allOf=lists),
        st.fixed_dictionaries({"oneOf": lists}),
    )


@given(st.recursive(LEAVES, nodes, max_leaves=6), st.integers(0, 1_000))
@settings(max_examples=examples(400), deadline=None)
def test_every_text_written_is_a_valid_instance(value: Any, seed: int) -> None:
    try:
        grammar = schema(value)
    except GrammarFault:
        return
    text = written(grammar, seed)
    if text is not None:
        jsonschema.validate(json.loads(text), value, jsonschema.Draft202012Validator)
