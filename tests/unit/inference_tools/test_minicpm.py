"""MiniCPM5's tags: a text with what XML would take for its own stands in a CDATA section."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.tools.formats import with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool
from tests.unit.inference_tools.answers import calls_of, events, pieces_of, plain, split, whole
from tests.unit.inference_tools.grammars import accepts, compiled, use
from tests.unit.inference_tools.native import tagged

PLAIN = plain("minicpm")
STRING = {"type": "string"}


def setter(**words: Any) -> Tool:
    return Tool(name="set", parameters={"properties": {"a": STRING | words}, "required": ["a"]})


@pytest.mark.parametrize("text", ["x < y", "a&b", "a\nb", "</param>", "]]>", "<![CDATA[a]]>", ">", 'é "', ""])
def test_a_text_is_wrapped_where_its_template_would(text: str) -> None:
    made = tagged("minicpm", [("set", {"a": text})], {"a"})
    assert ("<![CDATA[" in made) is any(char in text for char in "<&\n")
    assert written(PLAIN, [{"function": {"name": "set", "arguments": {"a": text}}}]) == made
    assert accepts(compiled(call_grammar(PLAIN, use(setter()))), [made])
    for size in (1, 2, 7, 100):
        (call,) = calls_of(whole(PLAIN, use(setter()), events(pieces_of([made], [size]))))
        assert json.loads(call.arguments) == {"a": text}


@pytest.mark.parametrize("text", ["a\nb", "a<b", "<![CDATA[a]]"])
def test_a_text_that_has_to_be_wrapped_can_not_stand_alone(text: str) -> None:
    made = tagged("minicpm", [("set", {"a": "#"})], {"a"}).replace("#", text)
    assert not accepts(compiled(call_grammar(PLAIN, use(setter()))), [made])


@pytest.mark.parametrize(
    ("words", "text", "is_valid"),
    [
        ({"enum": ["a\nb"]}, "a\nb", True),
        ({"enum": ["a\nb"]}, "a", False),
        ({"enum": ["a", "b&"]}, "a", True),
        ({"enum": ["a", "b&"]}, "b&", True),
        ({"maxLength": 2}, "<<", True),
        ({"maxLength": 2}, "<<<", False),
        ({"pattern": "^<b>$"}, "<b>", True),
        ({"pattern": "^[a-z]+$"}, "ab", True),
    ],
)
def test_what_a_schema_says_of_texts_counts_for_both(
    words: dict[str, Any], text: str, is_valid: bool
) -> None:
    made = tagged("minicpm", [("set", {"a": text})], {"a"})
    assert accepts(compiled(call_grammar(PLAIN, use(setter(**words)))), [made]) is is_valid


def test_tags_of_which_a_part_is_a_token_are_pieces() -> None:
    marked = with_tokens(FORMATS["minicpm"], {"<function": 3, "<param": 4, "</param>": 5, "</function>": 6})
    assert split(marked, tagged("minicpm", [("f", {"a": "x"})], {"a"})) == [
        *(3, ' name="f">', 4, ' name="a">x', 5, 6),
    ]
    assert marked.lead == with_tokens(FORMATS["minicpm"], {"<param": 4}).lead == ""
