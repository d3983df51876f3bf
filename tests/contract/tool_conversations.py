"""Conversations about tools made up by Hypothesis, and what must hold of every answer to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
from hypothesis import strategies as st

Json = dict[str, Any]


def objects(properties: Mapping[str, Json], required: int) -> Json:
    """Return the schema of an object of which the first properties are required."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


SPECIAL = ("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]")  # tokens of the models that call
OF_SOME = ("</arg_value>", "｜DSML｜", "<|tool_call>", '<|"|>')  # tokens of one format
# Hypothesis takes texts from code, too; those of tokens would be tokens in what a script says
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6).filter(
    lambda word: not any(special in word for special in (*SPECIAL, *OF_SOME))
)
LEAVES: list[st.SearchStrategy[Json]] = [
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-9, 9),
        st.integers(0, 30),
    ),
    st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 6)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(WORDS | st.integers(-(2**53), 2**53) | st.none(), min_size=1, max_size=3, unique_by=repr),
    ),
    st.just({"$ref": "#/$defs/colour"}),
]
SCHEMAS = st.recursive(
    st.one_of(LEAVES),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner)
        | st.builds(objects, st.dictionaries(WORDS, inner, max_size=2), st.integers(0, 2))
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(["get_weather", "add", "Größe", 'say "hi"', "[x]/{y}"]) | WORDS.filter(
    lambda word: word != ""
)
HISTORIES = ("nothing", "integers", "others", "mixed")


@dataclass(frozen=True, slots=True)
class Question:
    """A request body, and what its answer can be held against."""

    body: Json
    schemas: Mapping[str, Json]  # of the arguments, by the tools that may be called
    known_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, from whichever form it came in."""

    content: str
    calls: tuple[tuple[str, str], ...]  # names and arguments
    ids: tuple[str, ...]
    reasons: tuple[str, ...]  # all finish reasons that were told


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Draw tools, a history, a question and a choice."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    schemas = {}
    for name in names:
        properties = draw(st.dictionaries(WORDS, SCHEMAS, max_size=3))
        schemas[name] = objects(properties, draw(st.integers(0, 3))) | {
            "$defs": {"colour": {"enum": ["red", "green"]}}
        }
    named = draw(st.booleans())
    choice: Any = draw(st.sampled_from(["required", "required", None, "auto"]))
    callable_names = names
    if named and choice == "required":
        callable_names = [draw(st.sampled_from(names))]
        choice = {"type": "function", "function": {"name": callable_names[0]}}
    messages, ids = draw(histories(names[0]))
    body = {
        "messages": [*messages, {"role": "user", "content": draw(WORDS.filter(bool))}],
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": schemas[name]}} for name in names
        ],
        "tool_choice": choice,
        "parallel_tool_calls": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32)),
        "max_tokens": draw(st.sampled_from([400, 600, 40])),
    }
    return Question(body, {name: schemas[name] for name in callable_names}, frozenset(ids))


@st.composite
def histories(draw: st.DrawFn, name: str) -> tuple[list[Json], list[str]]:
    """Draw an earlier turn with calls and their results."""
    ids = {
        "nothing": [],
        "integers": ["0", "7"],
        "others": ["call_abc"],
        "mixed": ["3", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"],
    }[draw(st.sampled_from(HISTORIES))]
    if not ids:
        return [], []
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": draw(WORDS)} for id in ids]
    asked = {"role": "user", "content": "Go"}
    return [asked, {"role": "assistant", "content": None, "tool_calls": calls}, *results], ids


def example(schema: Json) -> Any:
    """Return a value of one of these schemas."""
    if "enum" in schema:
        return schema["enum"][0]
    examples: Json = {"boolean": True, "integer": schema.get("minimum"), "string": "", "array": []}
    if schema.get("type") in examples:
        return examples[schema["type"]]
    if "$ref" in schema:
        return "red"
    return {name: example(schema["properties"][name]) for name in schema["required"]}


def plain_answer(choice: Json) -> Answer:
    """Return what a whole answer says."""
    calls = choice["message"].get("tool_calls") or []
    return Answer(
        choice["message"]["content"] or "",
        tuple((call["function"]["name"], call["function"]["arguments"]) for call in calls),
        tuple(call["id"] for call in calls),
        (choice["finish_reason"],),
    )


def streamed_answer(choices: Sequence[Json]) -> Answer:
    """Return what the deltas of a stream say together, as OpenAI's client puts them together."""
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls: dict[int, list[str]] = {}
    for part in (part for choice in choices for part in choice["delta"].get("tool_calls") or []):
        told = calls.setdefault(part["index"], ["", "", ""])
        for place, piece in enumerate((part["id"], part["function"]["name"], part["function"]["arguments"])):
            told[place] += piece or ""
    assert list(calls) == list(range(len(calls)))
    return Answer(
        content,
        tuple((name, arguments) for _, name, arguments in calls.values()),
        tuple(id for id, _, _ in calls.values()),
        tuple(choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None),
    )


def check(question: Question, answer: Answer) -> None:
    """Assert what holds of every answer."""
    (reason,) = answer.reasons
    body = question.body
    assert reason in ("stop", "length", "tool_calls")
    assert (reason == "tool_calls") <= bool(answer.calls)
    if isinstance(body["tool_choice"], dict) or not body["parallel_tool_calls"]:
        assert len(answer.calls) <= 1
    if body["tool_choice"] not in (None, "auto"):
        assert answer.content == ""
        assert answer.calls or reason == "length"
    assert len(set(answer.ids)) == len(answer.ids) == len(answer.calls)
    assert not question.known_ids & set(answer.ids)
    whole = answer.calls if reason == "tool_calls" else answer.calls[:-1]  # the last one may be cut off
    for name, arguments in whole:
        jsonschema.validate(json.loads(arguments), question.schemas[name])
    for name, _ in answer.calls:
        assert name in question.schemas
