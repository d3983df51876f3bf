from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from inference.grammar.patterns import class_end, without_null
from tests.unit.inference.grammar.vocabularies import follows, schema

CLASSES = [
    r'^[^"]$',
    r"^[^\\]$",
    r'^[^"\\]$',
    r'^[^-"]$',
    r"^[^ -~]$",
    r'^[^/"]+$',
    "^[\\u0000-\\u0020]{3}$",
    r"^[\x00-!#-~]$",
    "^[^a]$",
    "^.$",
    r"^\S$",
    r"^\D$",
    r"^\W$",
]


NAMED = [r"\p{Letter}", r"\pL", r"\p{Cyrillic}", r"[\p{Ll}\d]"]
NAMED_CONTROLS = (
    r"\P{L} \PL \p{Cc} \pC \p{gc=Control} \p{is_other} [\p{^L}] \p{gc!=L} [[:cntrl:]] [[:^punct:]]".split()
)


@pytest.mark.parametrize("pattern", CLASSES)
@pytest.mark.parametrize("text", ['"', "\\", "a", "-", "é"])
def test_a_class_has_what_it_says_and_nothing_else(pattern: str, text: str) -> None:
    valid = re.search(pattern, text, re.ASCII) is not None
    assert (
        follows(schema({"type": "string", "pattern": pattern}), json.dumps(text, ensure_ascii=False)) == valid
    )


@pytest.mark.parametrize("text", ['{"\\"": 1}', '{"\\\\": 1}', '{"b": 1}'])
def test_names_by_pattern_are_no_less_exact(text: str) -> None:
    grammar = schema({"type": "object", "patternProperties": {r'^[^"]$': {}}, "additionalProperties": False})
    assert follows(grammar, text) == ('"' not in json.loads(text))


@pytest.mark.parametrize("pattern", NAMED_CONTROLS)
def test_a_class_by_name_that_has_control_characters_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarFault, match="has control characters"):
        without_null(pattern, "/pattern")


@given(st.text(st.sampled_from(r"ab[]^-\x00"), max_size=12))
def test_a_class_ends_within_the_expression(pattern: str) -> None:
    for start, char in enumerate(pattern):
        if char == "[":
            assert start < class_end(pattern, start) <= len(pattern)


@pytest.mark.parametrize("pattern", [r"a\[^b]", "a", r"\\", "[a-z]+", "[ab", "", *NAMED])
def test_other_expressions_stay_as_they_are(pattern: str) -> None:
    assert without_null(pattern, "") == pattern
