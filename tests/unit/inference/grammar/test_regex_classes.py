"""Classes of characters mean what they mean to Python, in regular expressions and in schemas."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from inference.grammar.compiled import LarkGrammar
from inference.grammar.fault import GrammarFault
from tests.examples import examples
from tests.unit.inference.grammar.vocabularies import follows, regex, schema

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of Python, that it may change its mind

ASCII = [*string.printable[:95], "\n", "\t"]
OTHERS = ["é", "٣", "½", "\u3000", "\ufeff", "😀"]
CLASSES = [
    r"[ --/]", r"[0-9+--*/]", r"[*--]", r"[--/]", r"[---]", r"[^--/]", r"[--]", r"[-]", r"[+-]",
    r"[a&&b]", r"[#-/&&x]", r"[#-&&x]", r"[&-&&&]", r"[a~~b]", r"[^~~]", r"[|-~~]", r"[a-z&&[^aeiou]",
    r"[a[b]", r"[[]", r"[^[]", r"[[a]", r"[[:no:]", r"[\[[]",
    r"[]a]", r"[^]a]", r"[]-a]", r"[^]-a]", r"[^]\d]", r"[]\D]",
    r"[^\D]", r"[^\W]", r"[^\S]", r"[^\D5]", r"[^\W\d]", r"[\D]", r"[\W1]", r"[^\d\s]", r"[\w-]", r"[-\w]",
    r"[/\\]", r"[^/]", r"[.-/]", "[\n-a]", r"[\x41-\x5a\u0061]",
]  # fmt: skip
ATOMS = [
    *"[[^---&&~~|:ac+/0 #!é",
    r"\d",
    r"\W",
    r"\S",
    r"\]",
    r"\-",
    r"\x41",
    r"\\",
    "[:",
    ":]",
    "&&",
    "~~",
    "--",
]


def spellings(pattern: str) -> list[tuple[LarkGrammar, Callable[[str], str]]]:
    """Return the grammars that an expression is in, with how a text is written in each."""
    value = {"type": "string", "pattern": f"^(?:{pattern})$"}
    return [(regex(pattern), str), (schema(value), lambda text: json.dumps(text, ensure_ascii=False))]


def compare(pattern: str) -> None:
    for grammar, spell in spellings(pattern):
        for char in ASCII:
            expected = re.fullmatch(pattern, char, re.ASCII) is not None
            assert (follows(grammar, spell(char)), char) == (expected, char)


def compare_others(pattern: str) -> None:
    """Assert that what is written beyond ASCII matches for Python in both of its ways."""
    grammar = regex(pattern)
    for char in OTHERS:
        if follows(grammar, char):
            assert (char, re.fullmatch(pattern, char)) != (char, None)
            assert (char, re.fullmatch(pattern, char, re.ASCII)) != (char, None)


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_class_matches_what_it_matches_in_python(pattern: str) -> None:
    compare(pattern)
    compare_others(pattern)


@pytest.mark.parametrize("pattern", ["[a[b]]", "[a-c&&[^b]]", "[[a]]", "[]a]]+"])
@pytest.mark.parametrize("text", ["b", "b]", "a]", "]", "[]", "&]", "c]", "a"])
def test_a_class_ends_where_it_ends_in_python(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text) is not None
    assert [follows(grammar, spell(text)) for grammar, spell in spellings(pattern)] == [expected] * 2


@given(st.sampled_from(["[", "[^", "[]", "[^]"]), st.lists(st.sampled_from(ATOMS), max_size=6).map("".join))
@example("[", ":]^|")
@settings(max_examples=examples(150), deadline=None)
def test_classes_of_any_members_match_as_in_python(opening: str, members: str) -> None:
    pattern = f"{opening}{members}]"
    try:
        re.compile(pattern)
    except re.error:
        assume(False)
    assume(not re.search(r"\[:\^?[a-z]+:\]", pattern[1:]))  # Rust's own
    try:
        compare(pattern)
        compare_others(pattern)
    except GrammarFault as fault:
        anchored = "an anchor inside" in fault.reason  # `^` behind a class that ended early
        fits = any(re.fullmatch(pattern, char, re.ASCII) for char in ASCII)
        assert anchored or not fits, pattern


@pytest.mark.parametrize(
    ("pattern", "text"), [(r"[^\D]", "٣"), (r"[^\W]", "é"), (r"[^]\d]", "٣"), (r"[^\S]", "\u3000")]
)
def test_a_negated_class_stays_in_ascii(pattern: str, text: str) -> None:
    assert not follows(regex(pattern), text)


@pytest.mark.parametrize("pattern", ["[[:digit:]]+", "[^[:^digit:]]+"])
def test_classes_by_name_within_classes_are_those_of_rust(pattern: str) -> None:
    assert follows(regex(pattern), "123")
    assert not follows(regex(pattern), "d")


@pytest.mark.parametrize("pattern", [r"[!-\d]", r"[\w--/]"])
def test_what_readers_disagree_on_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarFault, match="is no range"):
        regex(pattern)
