"""Arguments in tags: what grammars allow is what schemas allow, and is read as JSON that says the same."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool, ToolUse
from inference.types import CompiledGrammar
from tests.embedded import tokenizer
from tests.examples import examples
from tests.unit.inference_tools.answers import (
    FRAMES,
    TAGS,
    Piece,
    calls_of,
    events,
    pieces_of,
    plain,
    split,
    whole,
)
from tests.unit.inference_tools.grammars import accepts, allowed, compiled, ids_of, parsed, use, walk
from tests.unit.inference_tools.native import TAGGED, TOLD, calls_in_tags, end_of_text, tagged

FORMS = {
    **{name: plain(name) for name in TAGGED},
    "glm with tokens": with_tokens(FORMATS["glm"], {"<arg_value>": 0, "</arg_value>": 1}),
    "glm_tight with tokens": with_tokens(FORMATS["glm_tight"], {"<tool_call>": 0, "</arg_value>": 1}),
    "deepseek_v32 with tokens": with_tokens(FORMATS["deepseek_v32"], {"｜DSML｜": 0, "<|silent|>": 1}),
    "minimax_m3 with tokens": with_tokens(FORMATS["minimax_m3"], {"]<]minimax[>[": 0, "<|silent|>": 1}),
    "minicpm with tokens": with_tokens(FORMATS["minicpm"], {"<function": 0, "</param>": 1}),
    "minicpm with a token": with_tokens(FORMATS["minicpm"], {"<param": 0, "<|silent|>": 1}),
    "hy3 with tokens": with_tokens(
        FORMATS["hy3"], {"<tool_calls:opensource>": 0, "</arg_value:opensource>": 1}
    ),
    "qwen with tokens": with_tokens(FORMATS["qwen"], {"<tool_call>": 0, "</tool_call>": 1}),
}
every_form = pytest.mark.parametrize("fmt", FORMS.values(), ids=FORMS.keys())
STRING, NULL = {"type": "string"}, {"type": "null"}
PROPERTIES: dict[str, Any] = {
    "text": STRING,
    "colour": {"enum": ["red", "green", ""]},
    "code": {"type": "string", "pattern": "^[a-c]{1,3}$"},
    "short": {"type": "string", "maxLength": 2},
    "note": {"anyOf": [{"type": "string", "maxLength": 3}, NULL]},
    "count": {"type": "integer", "minimum": 0, "maximum": 9},
    "flag": {"type": "boolean"},
    "mixed": {"type": ["string", "integer"], "maxLength": 2},
    "deep": {"$ref": "#/$defs/deep"},
}
TEXTS = frozenset({"text", "colour", "code", "short", "note"})
PARAMETERS = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["text", "count"],
    "$defs": {
        "deep": {
            "type": "object",
            "properties": {
                "a": {"type": "array", "maxItems": 3, "items": {"enum": ["</parameter>\n", '"', "\n"]}}
            },
        }
    },
}
SET, NOW = Tool(name="set", parameters=PARAMETERS), Tool(name="now")
FULL: dict[str, Any] = {
    "text": 'a\n"b" </function>\\ \t ',
    "colour": "",
    "code": "abc",
    "short": "ä",
    "note": None,
    "count": 7,
    "flag": True,
    "mixed": "7",
    "deep": {"a": ["</parameter>\n", '"', "\n"]},
}


def answer(fmt: ToolFormat, arguments: dict[str, Any], text: str = "") -> list[Piece]:
    made = tagged(fmt.name, [("set", arguments), ("now", {})], TEXTS)
    return [text, *split(fmt, made)]


@cache
def grammar_of(form: str, required: bool) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], use(SET, NOW, required=required)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        ({"note": "null"}, True),  # which is read as null
        ({"note": "ab"}, True),
        ({"note": "abcd"}, False),
        ({"text": ""}, True),
        ({"text": "null"}, True),
        ({"colour": "blue"}, False),
        ({"code": "abcd"}, False),
        ({"code": ""}, False),
        ({"short": "abc"}, False),
        ({"count": 10}, False),
        ({"count": None}, False),
        ({"mixed": 7}, True),
        ({"deep": {"a": ["x"]}}, False),
        ({"deep": {"b": 1}}, False),
        ({"more": 1}, False),
    ],
)
def test_a_grammar_allows_what_the_schema_allows(form: str, changes: dict[str, Any], is_valid: bool) -> None:
    arguments = FULL | changes
    pieces = answer(FORMS[form], arguments)
    if FORMS[form].name in TOLD and arguments["note"] == "null":
        is_valid = False  # as a text it is too long
    assert accepts(grammar_of(form, False), pieces) == is_valid
    if is_valid:
        parts = calls_of(parsed(FORMS[form], use(SET, NOW), ids_of(pieces)))
        said = arguments | ({"note": None} if arguments["note"] == "null" else {})
        assert [(call.name, json.loads(call.arguments)) for call in parts] == [("set", said), ("now", {})]


@every_form
def test_what_is_optional_is_left_out_and_what_is_required_is_not(fmt: ToolFormat) -> None:
    grammar = compiled(call_grammar(fmt, use(SET, NOW)))
    assert accepts(grammar, answer(fmt, {"text": "a", "count": 1}, "Hm. "))
    assert accepts(grammar, answer(fmt, {"text": "a", "code": "b", "count": 1, "deep": {}}))
    assert not accepts(grammar, answer(fmt, {"text": "a"}))
    assert not accepts(grammar, answer(fmt, {"count": 1, "text": "a"}))  # in the order of the schema, as JSON


@every_form
def test_required_and_single_calls(fmt: ToolFormat) -> None:
    pieces = split(fmt, tagged(fmt.name, [("now", {})]))
    required = compiled(call_grammar(fmt, use(SET, NOW, required=True))).start()
    assert not allowed(required) >= set(ids_of(["Hi"]))
    matcher = compiled(call_grammar(fmt, use(SET, NOW, required=True, parallel=False))).start()
    assert all(matcher.accept(token_id) for token_id in ids_of(pieces))
    assert matcher.finished
    parts = parsed(fmt, use(SET, NOW, required=True), ids_of(pieces))
    assert [(call.name, call.arguments) for call in calls_of(parts)] == [("now", "{}")]


@pytest.mark.parametrize("form", ["glm with tokens", "glm_tight with tokens"])
def test_where_the_end_of_a_text_is_a_token_its_letters_are_a_text(form: str) -> None:
    fmt, text = FORMS[form], "a</arg_value>\nb"
    given = [
        piece if isinstance(piece, int) else piece.replace("#", text)
        for piece in answer(fmt, {"text": "#", "count": 1})
    ]
    assert accepts(grammar_of(form, False), given)
    (call, _) = calls_of(parsed(fmt, use(SET, NOW), ids_of(given)))
    assert json.loads(call.arguments) == {"text": text, "count": 1}


@pytest.mark.parametrize("form", sorted(TAGGED))
@pytest.mark.parametrize(
    ("words", "text", "is_valid"),
    [
        ({"maxLength": 100_000}, "a" * 2_000, True),
        ({"maxLength": 1_999}, "a" * 2_000, False),
        ({"minLength": 3, "maxLength": 65_536}, "ab", False),
        ({"minLength": 3}, "abc", True),
        ({"minLength": 30}, "a{end}{end}{end}", False),  # which would be read up to its first end
        ({"pattern": "z"}, "a{end}z", False),
        ({"pattern": "z"}, "az", True),
        ({"enum": [""]}, "", True),
        ({"enum": [""]}, "a", False),
    ],
)
def test_lengths_of_texts_and_ends_within_them(
    form: str, words: dict[str, Any], text: str, is_valid: bool
) -> None:
    tool = Tool(name="f", parameters={"properties": {"a": STRING | words}, "required": ["a"]})
    end = end_of_text(form).removesuffix("\n" if form == "glm" else "")
    end = end.replace("{key}", "a")
    made = tagged(form, [("f", {"a": text.replace("{end}", end)})], {"a"})
    assert accepts(compiled(call_grammar(plain(form), use(tool))), [made]) == is_valid


@pytest.mark.parametrize("form", [*FORMS, "hermes", "functionary"])
def test_a_line_break_between_calls_may_be_there_or_not(form: str) -> None:
    fmt = FORMS.get(form) or plain(form)
    if fmt.ending:
        return  # calls in a frame of their own are written in one way
    tool_use = use(NOW, Tool(name="add"))
    one, two, both = (
        written(fmt, [{"function": {"name": name, "arguments": {}}} for name in names])
        for names in (["now"], ["add"], ["now", "add"])
    )
    assert both in (one + two, f"{one}\n{two}")
    grammar = compiled(call_grammar(fmt, tool_use))
    for text in (one + two, f"{one}\n{two}", f"{one}\n", one):
        pieces = split(fmt, text)
        assert accepts(grammar, pieces)
        for size in (1, 3, len(text)):
            found = [call.name for call in calls_of(whole(fmt, tool_use, events(pieces_of(pieces, [size]))))]
            assert found == ["now", "add"][: 1 + (two in text)]
    assert not accepts(grammar, split(fmt, f"{one}\n\n{two}"))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(sorted(TAGGED)),
    st.booleans(),
    st.text('a</parmetrg_vlu>=\n"\\ é', max_size=30)
    | st.sampled_from(["</parameter>", "</param>", "<![CDATA[", "]]>", "</arg_value", "\n\n", "null"]),
    st.none() | st.text("nul\n<", max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_an_answer_is_read_the_same_in_whatever_pieces_it_comes(
    form: str, special: bool, text: str, note: str | None, cuts: list[int]
) -> None:
    fmt = with_tokens(FORMATS[form], FRAMES | TAGS if special else {})
    end = end_of_text(fmt.name).rstrip("\n" if fmt.name == "glm" else "")
    end = end.replace("{key}", "text")
    said = FULL | {"text": (text + end).partition(end)[0], "note": note}
    given = events(pieces_of(answer(fmt, said), cuts))
    (call, now) = calls_of(whole(fmt, use(SET, NOW), given))
    assert json.loads(call.arguments) == said
    assert call.arguments == json.dumps(json.loads(call.arguments), ensure_ascii=False, separators=(",", ":"))
    assert (now.name, now.arguments) == ("now", "{}")
    if not special:
        assert accepts(grammar_of(form, False), answer(fmt, said, "Hm."))


# A random walk would hardly ever find the end of a text without limits
SMALL = Tool(
    name="set",
    parameters=PARAMETERS | {"properties": PROPERTIES | {"text": STRING | {"maxLength": 4}}},
)


@cache
def small_grammar_of(form: str) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], use(SMALL, required=True, parallel=False)))


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_whatever_a_grammar_lets_through_is_read_as_what_stands_there_and_fits_the_schema(
    form: str, seed: int
) -> None:
    fmt = FORMS[form]
    ids = walk(small_grammar_of(form).start(), seed, tokens=1_500)
    assert ids is not None
    spelt = {marker.id: marker.text for marker in fmt.markers if marker.id is not None}
    stream = tokenizer().stream([5])
    everything = "".join(
        spelt.get(token_id, "") if token_id in tokenizer().special_ids else stream.push(token_id)
        for token_id in ids
    )
    found = calls_of(parsed(fmt, use(SMALL, required=True, parallel=False), ids))
    assert found
    assert [call.name for call in found] == [name for name, _ in calls_in_tags(fmt.name, everything)]
    for call, (_, values) in zip(found, calls_in_tags(fmt.name, everything), strict=True):
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, SMALL.parameters)
        expected = {
            name: value if name in TEXTS and (name, value) != ("note", "null") else json.loads(value)
            for name, value in values
        }
        assert arguments == expected


def test_many_tools_fit() -> None:
    properties = {
        f"p{at}": PROPERTIES[name] for at, name in enumerate(["text", "code", "count", "note", "deep"])
    }
    tools = tuple(
        Tool(name=f"tool_{at}", parameters=PARAMETERS | {"properties": properties, "required": ["p0"]})
        for at in range(128)
    )
    for form in ("qwen", "glm_tight"):
        grammar = compiled(call_grammar(plain(form), ToolUse(tools=tools, required=False, parallel=True)))
        assert accepts(grammar, [tagged(form, [("tool_77", {"p0": "x", "p2": 1})], {"p0"})])
