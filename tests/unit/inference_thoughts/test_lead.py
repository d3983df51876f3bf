from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from inference.errors import GrammarRefused
from inference.thoughts.formats import ThoughtFormat, detect
from inference.thoughts.lead import led
from inference.thoughts.types import Place
from inference.tools.grammar import call_grammar
from inference.types import Grammar, GrammarKind
from tests.unit.inference_tools.grammars import FORMS, accepts, begins, compiled, use

SCHEMA = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"enum": ["yes", "no"]}))
DIGITS = Grammar(kind=GrammarKind.REGEX, source="[0-9]{2}")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def tags(special: Mapping[str, int] | None = None) -> ThoughtFormat:
    found = detect(["</think>"], special or {})
    assert found is not None
    return found


HIDDEN = tags({"<think>": 0, "</think>": 1})


@pytest.mark.parametrize(("form", "answer", "other"), [(SCHEMA, '"yes"', "yes"), (DIGITS, "12", "1")])
def test_a_form_has_room_for_a_thought_before_it(form: Grammar, answer: str, other: str) -> None:
    grammar = compiled(led(form, tags(), Place.START))
    assert accepts(grammar, [answer])
    assert accepts(grammar, [f'<think>\nWhich? "no", {other}.\n</think>\n\n{answer}'])
    assert not accepts(grammar, ["<think>\nHm.\n</think>\n\n"])
    assert not accepts(grammar, [f"<think>{answer}"])
    assert not begins(grammar, [f"<think>Hm</think>Well, {answer}"])
    assert not begins(grammar, [f"Hm</think>{answer}"])


def test_a_thought_that_the_prompt_opened_has_to_end_before_the_form() -> None:
    grammar = compiled(led(DIGITS, tags(), Place.THOUGHT))
    assert accepts(grammar, ["Hm.</think>\n\n12"])
    assert not accepts(grammar, ["12"])
    assert begins(grammar, ["12 is it"])
    assert led(DIGITS, tags(), Place.WORDS) == DIGITS


def test_marks_that_are_special_tokens_are_these_and_no_text() -> None:
    grammar = compiled(led(DIGITS, HIDDEN, Place.START))
    assert accepts(grammar, ["12"])
    assert accepts(grammar, [0, "Hm.\n", 1, "\n12"])
    assert not begins(grammar, ["<think>"])
    opened = compiled(led(DIGITS, HIDDEN, Place.THOUGHT))
    assert accepts(opened, ["Hm.", 1, "12"])
    assert not accepts(opened, ["12"])


def test_calls_that_are_required_follow_the_thought() -> None:
    wanted = call_grammar(FORMS["hermes"], use(required=True))
    grammar = compiled(led(wanted, tags(), Place.THOUGHT))
    assert accepts(grammar, [f"Now?\n</think>\n\n{CALL}"])
    assert not begins(grammar, ["Now?\n</think>\n\nLater."])


def test_what_is_wrong_with_a_form_is_told_as_without_a_thought() -> None:
    wrong = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type": "array", "uniqueItems": true}')
    with pytest.raises(GrammarRefused) as alone:
        compiled(wrong)
    with pytest.raises(GrammarRefused) as behind:
        compiled(led(wrong, tags(), Place.START))
    assert str(behind.value) == str(alone.value)
    assert "uniqueItems" in str(alone.value)
