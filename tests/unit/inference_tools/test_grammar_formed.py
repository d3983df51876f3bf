"""Answers that are a text of a form, or calls: what the grammar allows, and how it is read."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import GrammarRefused, ToolRefused
from inference.tools.grammar import call_grammar
from inference.tools.types import CallStart, TextPart, Tool, ToolUse
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.unit.inference_tools.answers import calls_of, text_of, written
from tests.unit.inference_tools.grammars import (
    CALL,
    EMPTY,
    FORMS,
    accepts,
    begins,
    compiled,
    ids_of,
    parsed,
    use,
    walk,
)

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 12}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA), member="text.format.schema")
SIGNS = ("<tool_call>", "[TOOL_CALLS]", '{\\"name\\": \\"now\\"')  # as a JSON string has them


def formed(*, required: bool = False) -> ToolUse:
    return replace(use(required=required), formed=True)


@cache
def grammar_of(form: str, required: bool = False) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], formed(required=required), form=FORM))


@pytest.mark.parametrize("form", sorted(FORMS))
def test_an_answer_is_a_text_of_the_form_or_calls_and_nothing_else(form: str) -> None:
    fmt, grammar = FORMS[form], grammar_of(form)
    calls = written(fmt, [CALL, EMPTY])
    assert accepts(grammar, ['{"answer": "yes"}'])
    assert accepts(grammar, calls)
    assert not begins(grammar, ["Hm, I look it up."])
    assert not begins(grammar, ['{"other"'])
    assert calls_of(parsed(fmt, formed(), ids_of(calls))) == [CALL.told, EMPTY]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_sign_of_a_call_within_the_text_is_text(form: str, sign: str) -> None:
    text = f'{{"answer": "{sign}"}}'
    unbounded = replace(FORM, source=FORM.source.replace('"maxLength": 12', '"maxLength": 99'))
    assert accepts(compiled(call_grammar(FORMS[form], formed(), form=unbounded)), [text])
    assert parsed(FORMS[form], formed(), ids_of([text])) == (TextPart(text),)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_every_text_of_the_grammar_is_read_whole_and_follows_the_form(form: str, seed: int) -> None:
    matcher, begun = grammar_of(form).start(), ids_of(['{"answer"'])
    assert all(matcher.accept(token_id) for token_id in begun)
    rest = walk(matcher, seed, tokens=300)
    if rest is None:
        return
    parts = parsed(FORMS[form], formed(), [*begun, *rest])
    assert calls_of(parts) == []
    told = json.loads(text_of(parts))
    assert told.keys() == {"answer"}
    assert len(told["answer"]) <= 12


def test_where_a_call_is_required_the_form_has_no_say_and_that_is_told() -> None:
    grammar = grammar_of("hermes", required=True)
    assert accepts(grammar, written(FORMS["hermes"], [EMPTY]))
    assert not begins(grammar, ['{"answer"'])
    told = call_grammar(FORMS["hermes"], formed(required=True), form=FORM)
    assert told.left_out == ("text.format.schema",)


@pytest.mark.parametrize("required", [False, True])
def test_a_form_that_is_no_schema_is_refused_beside_tools(*, required: bool) -> None:
    expression = Grammar(kind=GrammarKind.REGEX, source="a+", member="text.format.value")
    with pytest.raises(ToolRefused, match=r"`text.format.value` and `tools` are mutually exclusive"):
        call_grammar(FORMS["hermes"], formed(required=required), form=expression)


@pytest.mark.parametrize("reference", ["$ref", "$schema"])
def test_nothing_is_fetched_to_tell_a_call_from_a_text(reference: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        unused = {"$defs": {"x": {"$ref": address}}} if reference == "$ref" else {"$schema": address}
        tool = Tool(name="now", parameters={"type": "object", "properties": {"a": {}}, **unused})
        asked = replace(formed(), tools=(tool,))
        fmt = FORMS[next(form for form in sorted(FORMS) if FORMS[form].bare)]
        call_grammar(fmt, asked, form=FORM)
        text = f'{{"name": "now", "{fmt.arguments_key}": {{"a": 1}}}}'
        assert [call.name for call in parsed(fmt, asked, ids_of([text])) if isinstance(call, CallStart)] == [
            "now"
        ]
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


LIKE_CALLS = [
    '{"name": "now", "kind": "verb"}',
    '{"name": "now", "other": {"city": "Paris"}}',
    '{"name": "now", "KEY": {"bogus": 1}}',
    '{"name": "now", "KEY": {}, "x": 1}',
    '{"name": "now", "KEY": 5}',
    '{"name": "nobody", "KEY": {}}',
    '{"name": "now"}',
    '{"name": "now", "KEY": {}, "name": "nobody"}',
    '{"name": "now", "KEY": {}, "name": ["x"]}',
    '{"name": "now", "KEY": {"a": 1, "a": 2}}',
    '{"name": "now", "KEY": {',
]


@pytest.mark.parametrize("text", LIKE_CALLS)
@pytest.mark.parametrize("form", [form for form in sorted(FORMS) if FORMS[form].bare])
def test_a_text_of_the_form_that_is_no_call_to_its_end_is_told_whole(form: str, text: str) -> None:
    fmt = FORMS[form]
    text = text.replace("KEY", fmt.arguments_key)
    anything = replace(FORM, source='{"type": "object"}')
    assert begins(compiled(call_grammar(fmt, formed(), form=anything)), [text])
    assert parsed(fmt, formed(), ids_of([text])) == (TextPart(text),)


def test_a_wrong_schema_is_named_where_the_request_has_it() -> None:
    wrong = replace(FORM, source='{"type": "object", "properties": {"a": {"not": {"type": "null"}}}}')
    with pytest.raises(GrammarRefused, match=r"`text.format.schema` at /properties/a/not"):
        call_grammar(FORMS["hermes"], formed(), form=wrong)
