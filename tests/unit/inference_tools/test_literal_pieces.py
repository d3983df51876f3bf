"""Arguments as literals, drawn by chance: any are read back, in any pieces, and all that grammars allow."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tools.grammar import call_grammar
from inference.tools.types import Tool
from inference.types import CompiledGrammar
from tests.embedded import tokenizer
from tests.examples import examples
from tests.unit.inference_tools.answers import calls_of, events, pieces_of, plain, split, whole
from tests.unit.inference_tools.grammars import accepts, compiled, parsed, use, walk
from tests.unit.inference_tools.native_literals import FRAMES, calls_in_literals, literal_calls
from tests.unit.inference_tools.test_literals import FORMS, PARAMETERS, PROPERTIES, STRING

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text("ab'\"\\\n])},:=<|é😀\x00", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-c]{1,3}\Z"), inner, max_size=3)
    ),
    max_leaves=6,
)
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
ANYTHING = Tool(name="put", parameters={"properties": {"x": {}}, "additionalProperties": True})


@cache
def open_grammar_of(form: str) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], use(ANYTHING)))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.dictionaries(st.sampled_from(["x", "y", "z_1"]), values), CUTS)
def test_any_arguments_are_read_back_in_whatever_pieces_they_come(
    form: str, said: dict[str, Any], cuts: list[int]
) -> None:
    fmt = FORMS[form]
    said = dict(sorted(said.items()))
    pieces = split(fmt, literal_calls(fmt.name, [("put", said)]))
    (call,) = calls_of(whole(fmt, use(ANYTHING), events(pieces_of(pieces, cuts))))
    assert json.loads(call.arguments) == said
    assert accepts(open_grammar_of(form), pieces)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.text(max_size=12), CUTS)
def test_any_text_is_read_back_as_python_writes_it(name: str, said: str, cuts: list[int]) -> None:
    made = literal_calls(name, [("put", {"x": said})], repr)
    (call,) = calls_of(whole(plain(name), use(ANYTHING), events(pieces_of([made], cuts))))
    assert json.loads(call.arguments) == {"x": said}


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(sorted(FORMS)),
    st.text("a'\"\\u1x]})({[,:= \n<|", max_size=25),
    CUTS,
)
def test_what_no_grammar_allows_is_read_the_same_in_any_pieces_too(
    form: str, text: str, cuts: list[int]
) -> None:
    fmt = FORMS[form]
    head, mark, tail = literal_calls(fmt.name, [("put", {"x": "#"})]).partition("#")
    pieces = split(fmt, head + text + mark + tail)
    assert whole(fmt, use(ANYTHING), events(pieces_of(pieces, cuts))) == whole(
        fmt, use(ANYTHING), events(pieces_of(pieces, [1000]))
    )


# A random walk would hardly ever find the end of a text without limits, or of a list of anything
SMALL = Tool(
    name="set",
    parameters=PARAMETERS
    | {
        "properties": PROPERTIES
        | {
            "text": STRING | {"maxLength": 4},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 1}, "maxItems": 2},
            "mixed": {"type": ["string", "integer"], "maxLength": 2, "minimum": 0, "maximum": 9},
            "deep": {"properties": {"n": {"enum": [3]}, "o": {"enum": ["'", None, 0.5]}}},
            "free": {"type": ["array", "null"], "items": {"type": "boolean"}, "maxItems": 3},
        }
    },
)


@cache
def small_grammar_of(form: str) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], use(SMALL, required=True, parallel=False)))


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_whatever_a_grammar_lets_through_is_read_as_what_stands_there_and_fits_the_schema(
    form: str, seed: int
) -> None:
    fmt = FORMS[form]
    ids = walk(small_grammar_of(form).start(), seed, tokens=500)
    assert ids is not None
    spelt = {marker.id: marker.text for marker in fmt.markers if marker.id is not None}
    stream = tokenizer().stream([5])
    everything = "".join(
        spelt.get(token_id, "") if token_id in tokenizer().special_ids else stream.push(token_id)
        for token_id in ids
    )
    found = calls_of(parsed(fmt, use(SMALL, required=True, parallel=False), ids))
    assert len(found) == 1
    arguments = json.loads(found[0].arguments)
    jsonschema.validate(arguments, SMALL.parameters)
    everything = everything.replace("<|python_start|>", "")
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls_in_literals(
        fmt.name, everything
    )
