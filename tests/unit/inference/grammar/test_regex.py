from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from tests.examples import examples
from tests.unit.inference.grammar.vocabularies import LIMITS, follows, regex, written

PATTERNS = [
    r"[a-c]+(-\d{2})?",
    r"^(yes|no)$",
    r"^a|b$",
    r"\$\d+\.\d\d",
    r"https?://[^\s/]+/",
    r"[/\\]+",
    r"a\\$",
    r"\D{2}\W\S",
    r"[^\d\w]+x",
    r"[\S\n]+\s",
    r"\w+@\w+\.com",
    r"(?i)ja|nein",
    "a\nb",
    "é+ü?",
]
PYTHON, ASCII = 0, re.ASCII  # two readers that differ in what \d, \w and \s are


@given(st.sampled_from(PATTERNS), st.integers(min_value=0, max_value=10_000))
@settings(max_examples=examples(80), deadline=None)
def test_what_is_written_matches_from_end_to_end_for_all_readers(pattern: str, seed: int) -> None:
    text = written(regex(pattern), seed, tokens=60)
    if text is not None:
        assert re.fullmatch(pattern, text, PYTHON)
        assert re.fullmatch(pattern, text, ASCII)


@given(st.sampled_from(PATTERNS), st.text("ab-12.$\\/x @yesnojaein\nc", max_size=6))
@example(r"^(yes|no)$", "yes")
@example(r"^a|b$", "b")
@example(r"\$\d+\.\d\d", "$1.11")
@example("a\nb", "a\nb")
@settings(max_examples=examples(200), deadline=None)
def test_ascii_texts_pass_as_in_python(pattern: str, text: str) -> None:
    assert follows(regex(pattern), text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "nothing but the empty text"),
        ("^$", "nothing but the empty text"),
        ("(?=a)b", "look-around.* not supported"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\bfoo", "not supported: it has a word boundary"),
        (r"a\Bb", "not supported: it has a word boundary"),
        ("a^b", "not supported: it has an anchor inside"),
        ("a)|(b", "unopened group"),
        ("(" * 300 + ")" * 300, "nested"),
        ("[a", "unclosed character class"),
        (r"[^\s\S]", "no text fits it"),
        ("x" * 8193, "must have <= 8192 characters. Given: 8193"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused_with_its_reason(pattern: str, words: str) -> None:
    with pytest.raises(GrammarFault, match=words):
        regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "unclosed character class"),
        ("a{5,2}", "invalid repetition count range, the start must be <= the end"),
        ("*a", "repetition operator missing expression"),
        ("a(b", "unclosed group"),
        (r"ab\Z", "unrecognized escape sequence"),
    ],
)
def test_a_slip_in_an_expression_is_told_without_advice_on_what_is_not_supported(
    pattern: str, reason: str
) -> None:
    with pytest.raises(GrammarFault) as caught:
        regex(pattern)
    assert caught.value.reason == f"the regular expression is not valid: regex parse error, {reason}"


def test_an_expression_that_explodes_in_its_first_masks_is_refused() -> None:
    with pytest.raises(GrammarFault, match="takes more work than a grammar may"):
        regex(r"(\p{L}{1,100}\s){1,100}", replace(LIMITS, step_fuel=500))
