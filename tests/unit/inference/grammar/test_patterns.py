from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from inference.grammar.patterns import pieces, without_null
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
def test_the_pieces_of_an_expression_are_the_expression(pattern: str) -> None:
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces(pattern, "")]
    assert "".join(texts) == pattern


@pytest.mark.parametrize("pattern", [r"a\[^b]", "a", r"\\", "[a-z]+", "[ab", "", *NAMED])
def test_other_expressions_stay_as_they_are(pattern: str) -> None:
    assert without_null(pattern, "") == pattern


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"[a[b]]", r"[a\[b]]"),
        (r"[]a]x", r"[\]a]x"),
        (r"[^]a]", r"[^\x00\]a]"),
        (r"[^-a]", r"[^\x00\-a]"),
        (r"[--/]", r"[\--/]"),
        (r"[*--]", r"[*-\-]"),
        (r"[[:dig:]", r"[\[:dig:]"),
        (r"[\x{0}-\x{1f}\u{00}-]", r"[\x01-\x{1f}\u{00}\-]"),
        (r"[\w-.]", r"[\w\-.]"),
        (r"[\w-a-c]", r"[\w\-a-c]"),
    ],
)
def test_a_class_is_written_without_what_only_rust_reads(pattern: str, written: str) -> None:
    assert without_null(pattern, "") == written


@pytest.mark.parametrize("pattern", [r"[!-\d]", r"[\w--/]", r"[a-\p{L}]"])
def test_what_readers_disagree_on_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarFault, match="is no range"):
        without_null(pattern, "/pattern")


@pytest.mark.parametrize(
    "opener", ["[^", "[", r"\p{", r"[\p{", r"\x{0", r"[\u{0", "[:a", "[[:a", "[a-", "[^\\\n", "[[:alpha:"]
)
def test_an_expression_of_openers_is_read_in_time_that_grows_with_it(opener: str) -> None:
    pattern = (opener * 32_768)[:32_768]
    start = time.process_time()
    without_null(pattern, "")
    assert time.process_time() - start < 1
