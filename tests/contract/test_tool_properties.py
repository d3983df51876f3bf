"""Whatever tools and conversation are: calls are valid, and a streamed answer is the whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from inference.tools.grammar import marker_in
from tests.contract.tool_conversations import Answer, Json, Question, check, example, questions
from tests.contract.tool_models import MODELS, ToolModel, tool_model
from tests.examples import examples
from tests.unit.inference_tools.answers import Call, Piece, as_json, split, written
from tests.unit.inference_tools.native import TAGGED, tagged
from tests.unit.inference_tools.native_literals import LITERAL_FORMATS, literal_calls

quick = partial(
    settings,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
THOUGHT = "<think>I {could} <tool_call>.\n</think>\n"
REMARKS = st.sampled_from(["", "Let me see.\n", "I <tool_", "{} is empty. ", "Größe? ", THOUGHT])

STOPS = st.lists(
    st.sampled_from(["\n", "{", "}", '"', "name", "arguments", "[", "<tool", "me", "e.", " ", "TOOL"]),
    min_size=1,
    max_size=4,
    unique=True,
)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[ToolModel]:
    with tool_model(request.param) as made:
        yield made


def said_before(model: ToolModel, calls: list[Call], remark: str) -> str:
    """Return a remark where it may stand before these calls: bare ones follow thoughts alone."""
    return "" if calls and not model.format.opening and remark != THOUGHT else remark


def as_written(
    model: ToolModel, schemas: Mapping[str, Json], calls: list[Call], text: str = ""
) -> list[Piece]:
    """Return an answer as the model writes it."""
    if model.format.name in LITERAL_FORMATS:
        given = [(call.name, json.loads(call.arguments)) for call in calls]
        made = literal_calls(model.format.name, given, as_json)
        return [text, *split(model.format, made if calls else "")]
    if model.format.name not in TAGGED:
        return written(model.format, calls, text)
    texts = {
        (name, key)
        for name, schema in schemas.items()
        for key, value in schema["properties"].items()
        if is_text(value)
    }
    made = tagged(model.format.name, [(call.name, json.loads(call.arguments)) for call in calls], texts)
    return [text, *split(model.format, made if calls else "")]


def is_text(schema: Json) -> bool:
    """Return whether the values of a schema can be nothing but texts, and null."""
    if "enum" in schema:
        literals = schema["enum"]
        return any(each is not None for each in literals) and all(
            isinstance(each, str | None) for each in literals
        )
    return schema.get("type") == "string" or "$ref" in schema


def assume_names(model: ToolModel, question: Question) -> None:
    """Leave out a question with a name that the model's format can't hold."""
    names = [tool["function"]["name"] for tool in question.body["tools"]]
    assume(all(marker_in(model.format, name) is None for name in names))


def asked(model: ToolModel, question: Question) -> Answer:
    """Return the answer, which was the same in both forms."""
    assume_names(model, question)
    whole, streamed = model.ask(question.body)
    for answer in (whole, streamed):
        check(question, answer)
    assert (streamed.content, streamed.calls, streamed.reasons) == (whole.content, whole.calls, whole.reasons)
    if all(id.isdecimal() for id in whole.ids):  # others are drawn anew for each answer
        assert streamed.ids == whole.ids
    return whole


@quick(max_examples=examples(25))
@given(question=questions())
def test_whatever_the_model_draws_is_text_or_calls_that_are_valid(
    model: ToolModel, question: Question
) -> None:
    model.say(None)
    asked(model, question)


@quick(max_examples=examples(25))
@given(question=questions(), remark=REMARKS, count=st.integers(0, 3))
def test_what_the_model_says_is_what_the_client_gets(
    model: ToolModel, question: Question, remark: str, count: int
) -> None:
    body = question.body | {"tool_choice": "auto", "max_tokens": 2000, "parallel_tool_calls": True}
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    calls = [Call(name, as_json(example(schema))) for name, schema in schemas.items()][:count]
    text = said_before(model, calls, remark)
    model.say(as_written(model, schemas, calls, text))
    answer = asked(model, Question(body, schemas, question.known_ids))
    assert answer.calls == tuple((call.name, call.told.arguments) for call in calls)
    assert answer.content == (text.rstrip() if calls else text)
    assert answer.reasons == ("tool_calls" if calls else "stop",)


@quick(max_examples=examples(25))
@given(question=questions(), remark=REMARKS, count=st.integers(0, 2), stops=STOPS)
def test_stop_sequences_end_what_is_said_and_no_call(
    model: ToolModel, question: Question, remark: str, count: int, stops: list[str]
) -> None:
    body = question.body | {"tool_choice": "auto", "max_tokens": 2000, "parallel_tool_calls": True}
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    calls = [Call(name, as_json(example(schema))) for name, schema in schemas.items()][:count]
    model.say(as_written(model, schemas, calls, said_before(model, calls, remark)))
    free = asked(model, Question(body, schemas, question.known_ids))
    held = asked(model, Question(body | {"stop": stops}, schemas, question.known_ids))
    ends = [(at + len(stop), at) for stop in stops if (at := free.content.find(stop)) >= 0]
    if ends:
        assert (held.content, held.calls, held.reasons) == (free.content[: min(ends)[1]], (), ("stop",))
    else:
        assert (held.content, held.calls, held.reasons) == (free.content, free.calls, free.reasons)


@quick(max_examples=10)
@given(question=questions(), tokens=st.integers(1, 60))
def test_a_call_that_is_cut_is_given_as_far_as_it_came(
    model: ToolModel, question: Question, tokens: int
) -> None:
    (name, schema), *_ = question.schemas.items()
    forced = {"tool_choice": {"type": "function", "function": {"name": name}}}
    given = Call(name, as_json(example(schema)))
    pieces, whole_call = as_written(model, {name: schema}, [given]), given.told
    model.say(pieces)
    known = Question(question.body | forced | {"max_tokens": 2000}, {name: schema}, question.known_ids)
    assert asked(model, known).calls == ((name, whole_call.arguments),)
    cut = asked(model, Question(known.body | {"max_tokens": tokens}, {name: schema}, question.known_ids))
    assert all(told == name and whole_call.arguments.startswith(text) for told, text in cut.calls)
    assert cut.content == ""


@quick(max_examples=examples(25))
@given(
    question=questions(),
    thought=st.sampled_from(["Hm.", "I {could} <tool_call>.", '{"name": "a", "parameters": {}}', "\n"]),
    remark=REMARKS,
    count=st.integers(0, 3),
    choice=st.sampled_from(["auto", "required"]),
)
def test_thoughts_before_words_and_calls_are_told_apart(
    model: ToolModel, question: Question, thought: str, remark: str, count: int, choice: str
) -> None:
    body = question.body | {"tool_choice": choice, "max_tokens": 2000, "parallel_tool_calls": True}
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    calls = [Call(name, as_json(example(schema))) for name, schema in schemas.items()][: max(count, 1)]
    text = "" if choice == "required" or not model.format.opening else remark.removeprefix(THOUGHT)
    model.say([f"<think>{thought}</think>\n", *as_written(model, schemas, calls, text)])
    assume_names(model, question)
    whole, streamed = model.ask(body | {"reasoning_format": "parsed"})
    for answer in (whole, streamed):
        assert answer.calls == tuple((call.name, call.told.arguments) for call in calls)
        assert answer.content == text.strip()
        assert answer.reasons == ("tool_calls",)
