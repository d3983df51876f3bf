from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tools.formats import CALLS_LIMIT, ToolFormat
from inference.tools.grammar import call_grammar
from inference.tools.opening import Opening
from inference.tools.types import CallStart
from inference.types import CompiledGrammar
from tests.embedded import tokenizer
from tests.examples import examples
from tests.unit.inference_tools.answers import (
    Call,
    Piece,
    calls_of,
    text_of,
    written,
)
from tests.unit.inference_tools.grammars import (
    CALL,
    EMPTY,
    EOS,
    FORMS,
    NOW,
    QUOTED,
    TOOLS,
    accepts,
    allowed,
    begins,
    calls_in,
    compiled,
    ids_of,
    parsed,
    use,
    walk,
)

every_form = pytest.mark.parametrize("fmt", FORMS.values(), ids=FORMS.keys())


@every_form
def test_a_choice_is_text_or_calls(fmt: ToolFormat) -> None:
    grammar = compiled(call_grammar(fmt, use()))
    answers: list[list[Piece]] = [
        [""],
        ["Hi!\n"],
        [" <tool"],
        ["{}"],
        written(fmt, [CALL]),
        written(fmt, [EMPTY, QUOTED, CALL]),
        [*written(fmt, [CALL, EMPTY]), "\n"],
    ]
    if fmt.opening:
        answers.append(written(fmt, [CALL, CALL], "Let me see.\n"))
    assert [accepts(grammar, answer) for answer in answers] == [True] * len(answers)
    wrong: list[list[Piece]] = [
        [*written(fmt, [CALL]), " So"],
        written(fmt, [Call("add", '{"a": 10}')]),
        written(fmt, [Call("add", '{"b": 1}')]),
        written(fmt, [Call("add", '{"a": 1, "c": 1}')]),
        written(fmt, [Call("now", "[]")]),
        written(fmt, [CALL, Call("now", '{"a": 1}')]),
    ]
    assert [accepts(grammar, answer) for answer in wrong] == [False] * len(wrong)


@every_form
def test_a_required_call_leaves_no_room_for_text(fmt: ToolFormat) -> None:
    grammar = compiled(call_grammar(fmt, use(required=True)))
    assert accepts(grammar, written(fmt, [QUOTED, CALL]))
    for text in ("", "Hi", "\n", "{}"):
        assert not accepts(grammar, [text])
    assert EOS not in allowed(grammar.start())


@every_form
def test_one_call_is_the_end_where_calls_are_not_parallel(fmt: ToolFormat) -> None:
    for required in (True, False):
        matcher = compiled(call_grammar(fmt, use(required=required, parallel=False))).start()
        assert all(matcher.accept(token_id) for token_id in ids_of(written(fmt, [CALL])))
        assert matcher.finished


def test_calls_have_a_limit() -> None:
    grammar = compiled(call_grammar(FORMS["generic"], use(NOW)))
    assert accepts(grammar, written(FORMS["generic"], [EMPTY] * CALLS_LIMIT))
    assert not begins(grammar, written(FORMS["generic"], [EMPTY] * (CALLS_LIMIT + 1)))


@pytest.mark.parametrize(
    ("form", "pieces", "is_text"),
    [
        ("hermes", ["<tool_", 0, "call>"], True),
        ("hermes", ["a <tool_call>b"], False),
        ("hermes", [0, "a", 0, 0], True),
        ("mistral", ["[TOOL_CALLS] is its sign"], True),
        ("mistral", [1, "x"], False),
        ("generic", ['{"name": "Bob", "age": 3}'], True),
        ("generic", ['{"name": "address"}'], True),
        ("generic", [' {"name":\n"add", '], False),  # a call that isn't whole
        ("generic", ['So: {"name": "add"}'], True),
        ("generic", [0, '{"name": "add"}'], True),
        ("llama3", ['{"type": "function", "name": "add"}'], False),
        ("llama3", ['{"type": "object", "name": "add"}'], True),
        ("llama3", ["{", 0, '"name": "add"}'], True),
    ],
)
def test_only_the_sign_of_a_call_makes_an_answer_one(form: str, pieces: list[Piece], is_text: bool) -> None:
    assert accepts(compiled(call_grammar(FORMS[form], use())), pieces) == is_text


LETTERS = [
    *("{", "}", ":", ",", '"', '"name"', '"name":', '"now"', '"no', 'w"', '"add"', '"parameters"'),
    *('{"name": "now"', '"type":"function",', " ", "\n", "a", "<", "</th", "ink>", "<think>", "</think>"),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_where_words_may_go_on_the_parser_has_found_no_call_and_else_it_has(data: st.DataObject) -> None:
    """The grammar and what reads the answer tell words from calls by the same signs."""
    form = data.draw(st.sampled_from(sorted(FORMS)))
    thinking = data.draw(st.booleans())
    fmt, grammar = FORMS[form], grammars(form, required=False, parallel=True, thinking=thinking)
    opening, said = Opening(fmt, replace(use(), thinking=thinking)), list[Piece]()
    signs = [marker.text if marker.id is None else marker.id for marker in fmt.opening[:1]]
    for piece in data.draw(st.lists(st.sampled_from([*LETTERS, *signs, *fmt.silent_ids]), max_size=12)):
        if opening.found:
            break
        said.append(piece)
        assert begins(grammar, said), said
        opening.special(piece) if isinstance(piece, int) else opening.push(piece)
        assert begins(grammar, [*said, "So, so"]) != opening.found, said


@pytest.mark.parametrize(
    ("form", "pieces"),
    [
        ("llama3", [1, '{"type": "function", "name": "add", "parameters": {"a": 1}}']),
        ("generic", ['\n{\n  "name": "add",\n  "parameters": {"a": 1}\n}']),
        ("mistral", [1, ' [{"name": "add", "arguments": {"a": 1}, "id": "a1b2c3d4e"}]']),
        ("mistral_args as text", ['[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{"a":1}']),
        ("hermes", ['<tool_call>\n{ "name":"add","arguments":{"a":1} }\n</tool_call>']),
    ],
)
def test_what_models_of_the_format_write_besides_is_possible(form: str, pieces: list[Piece]) -> None:
    assert accepts(compiled(call_grammar(FORMS[form], use())), pieces)
    assert [part.name for part in parsed(FORMS[form], use(), ids_of(pieces)) if isinstance(part, CallStart)]


@settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(sorted(FORMS)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
    st.sampled_from(["", "Hm "]),
)
def test_every_answer_of_the_grammar_is_read_as_a_json_parser_reads_it(
    form: str, required: bool, parallel: bool, seed: int, text: str
) -> None:
    fmt, tool_use = FORMS[form], use(required=required, parallel=parallel)
    grammar = grammars(form, required, parallel)
    matcher = grammar.start()
    begun: list[Piece] = []
    end = fmt.thought_end
    if not required:  # a random walk would hardly ever find the sign of a call
        first = fmt.opening[0] if fmt.opening else None
        thought: list[Piece] = [text, end.text if end.id is None else end.id] if text else []
        begun = (
            [*thought, "{", '"name": "now"']
            if first is None
            else [text, first.text if first.id is None else first.id]
        )
    ids = ids_of(begun)
    assert all(matcher.accept(token_id) for token_id in ids)
    rest = walk(matcher, seed, tokens=600)
    if rest is None:
        return
    ids += rest
    parts = parsed(fmt, tool_use, ids)
    spelt = {marker.id: marker.text for marker in fmt.markers if marker.id is not None}
    stream = tokenizer().stream([5])
    everything = "".join(
        spelt.get(token_id, "") if token_id in tokenizer().special_ids else stream.push(token_id)
        for token_id in ids
    )
    expected = calls_in(fmt, everything)
    calls = calls_of(parts)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert 1 <= len(calls) <= (CALLS_LIMIT if parallel else 1)
    said = "" if required else text.rstrip() if fmt.opening else text
    if said and not fmt.opening and end.id is None:
        said += end.text
    assert text_of(parts) == said
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@cache
def grammars(form: str, required: bool, parallel: bool, *, thinking: bool = False) -> CompiledGrammar:
    tool_use = replace(use(required=required, parallel=parallel), thinking=thinking)
    return compiled(call_grammar(FORMS[form], tool_use))
