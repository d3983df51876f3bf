from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from handlers.wire.custom_tools import UNKNOWN, InputReader, custom_tool, told_format
from inference.errors import InvalidInput, Member


def form(syntax: str, definition: str) -> Any:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def pattern_of(given: Any) -> object:
    tool, _ = custom_tool("f", None, given, "tools[0]")
    properties: Any = tool.parameters["properties"]
    return properties["input"].get("pattern")


def read(*pieces: str) -> str:
    reader = InputReader()
    return "".join(map(reader.read, pieces))


@given(some.text(), some.booleans(), some.integers(1, 7))
@example('"\\/\b\f\n\r\t\x00\u2028', False, 1)
@example("😀\ufffd😀", True, 5)
def test_an_input_is_read_out_of_its_arguments_however_they_come(text: str, escaped: bool, size: int) -> None:
    written = json.dumps({"input": text}, ensure_ascii=escaped)
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert read(*pieces) == text
    assert text.startswith(read(*pieces[: len(pieces) // 2]))


def test_half_a_pair_is_no_character() -> None:
    assert read('{"input":"\\ud83d\\ude00\\ud83d', "x", '"}') == f"😀{UNKNOWN}x"
    assert read('{"input":"\\ude00\\ud83d\\u0041"}') == f"{UNKNOWN * 2}A"
    assert read('{"input":"a\\ud83d"') == f"a{UNKNOWN}"
    assert read("{", '"in', "put", '" : ') == ""


def test_the_model_is_shown_the_definition_and_held_to_an_expression() -> None:
    tool, is_held = custom_tool("f", "It does f.", form("lark", 'start: "a"'), "tools[0].tools[3]")
    shown: Any = tool.shown["properties"]
    assert is_held
    assert (tool.name, tool.description) == ("f", "It does f.")
    assert tool.member == Member(
        "tools[0].tools[3].format.definition", "`tools[].tools['f'].format.definition`"
    )
    assert 'grammar of Lark:\nstart: "a"' in shown["input"]["description"]
    assert "pattern" not in shown["input"]
    assert pattern_of(form("lark", 'start: "a"')) == "^(?:(?:a))$"


@pytest.mark.parametrize(
    ("definition", "pattern"),
    [
        ("a+", "^(?:a+)$"),
        ("^a+$", "^(?:a+)$"),
        ("a\\$", "^(?:a\\$)$"),
        ("a\\\\$", "^(?:a\\\\)$"),
        ("a|b", "^(?:a|b)$"),
        ("a(?=b)", None),
    ],
)
def test_an_expression_is_one_of_the_whole_input(definition: str, pattern: str | None) -> None:
    assert pattern_of(form("regex", definition)) == pattern
    assert custom_tool("f", None, form("regex", definition), "x")[1] is (pattern is not None)


def test_any_text_has_no_form() -> None:
    assert custom_tool("f", None, None, "x")[1]
    assert custom_tool("f", None, {"type": "text"}, "x")[1]
    assert not custom_tool("f", None, form("lark", "start: start"), "x")[1]
    assert told_format(None, "x") == {"type": "text"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "grammar", "syntax": "lark"}, "`x` is of type 'grammar' and has no `definition`: add it"),
        ({"type": "grammar", "definition": "a"}, "`x` is of type 'grammar' and has no `syntax`: add it"),
        (
            {"type": "text", "definition": "a"},
            "`x.definition` does not go with the type 'text': leave it out",
        ),
    ],
)
def test_a_format_that_lacks_something_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        told_format(given, "x")
    assert str(refused.value) == message
