from __future__ import annotations

import time

import pytest

from inference.grammar.checks import check_escapes
from inference.grammar.fault import GrammarFault
from inference.grammar.tree import Place
from tests.unit.inference.grammar.vocabularies import schema


def escapes(pattern: str) -> None:
    check_escapes(Place("", {"type": "string", "pattern": pattern}, 0))


@pytest.mark.parametrize(
    "pattern",
    [r"^[^\x00-\x1f]+$", "[^\x01]", r"[^]\x01]", r"[ -\x7f]", r"[^\]\x01]", r"\n", r"^C:\\app", r"\\v\\\\e"],
)
def test_what_a_class_leaves_out_needs_no_escape(pattern: str) -> None:
    escapes(pattern)


@pytest.mark.parametrize(
    "pattern", [r"\x01", "a\x7f", r"[a\x01]", r"[a[^\x01]", r"\[^\x01]", r"[^a]\x01", r"\\\a"]
)
def test_a_control_character_that_can_only_be_escaped_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarFault, match="control characters"):
        escapes(pattern)


@pytest.mark.parametrize("pair", [("[&]", r"[\&]"), (r"[\x00-b]", r"[\x01-b]")])
def test_names_by_expressions_that_become_the_same_are_refused(pair: tuple[str, str]) -> None:
    named = {pattern: {"type": kind} for pattern, kind in zip(pair, ("integer", "string"), strict=True)}
    with pytest.raises(GrammarFault, match="can match several"):
        schema({"type": "object", "patternProperties": named, "additionalProperties": False})


@pytest.mark.parametrize("opener", ["[^", "[^\\\n", "[^a-"])
def test_an_expression_of_openers_is_checked_in_time_that_grows_with_it(opener: str) -> None:
    start = time.process_time()
    escapes((opener * 32_768)[:32_768])
    assert time.process_time() - start < 1
