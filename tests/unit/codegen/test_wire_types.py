"""The generated types mean what the schemas mean: msgspec, which reads types, agrees with jsonschema."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
from jsonschema import Draft4Validator

from codegen.document import Document
from codegen.samples import Samples
from codegen.wire_types import expression, first_sentence, in_order, render, types_of
from handlers.wire import types

DOCUMENT = Document.load()
OBJECTS = [name for name, schema in DOCUMENT.schemas.items() if "properties" in schema]
OTHERS: list[Any] = [None, [], {}, "x", True, 1, 1.5, ["x"], [1], {"x": 1}]
UNION = "may not contain more than one"  # of objects or of arrays, which msgspec can't tell apart


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return what makes a module of a text."""

    def make(text: str) -> ModuleType:
        module = ModuleType("generated")
        monkeypatch.setitem(sys.modules, "generated", module)
        exec(text, module.__dict__)
        return module

    return make


def fits(kind: Any, value: Any) -> bool:
    """Return whether msgspec finds that a value is of a type."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def readable(kind: Any) -> bool:
    """Return whether msgspec can read a type."""
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        return True
    except TypeError as error:
        return UNION not in str(error)
    return True


def changed(sample: dict[str, Any], members: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a sample without each of its members, and with each as something else."""
    for name in members:
        yield {key: value for key, value in sample.items() if key != name}
        for other in OTHERS:
            yield {**sample, name: other}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_type_has_the_members_of_its_schema(name: str) -> None:
    schema, kind = DOCUMENT.schemas[name], getattr(types, name)
    required = set(schema.get("required", ()))
    assert kind.__required_keys__ == required
    assert kind.__optional_keys__ == schema["properties"].keys() - required
    assert typing.get_type_hints(kind).keys() == schema["properties"].keys()


def test_a_value_is_of_a_type_if_it_fits_the_schema() -> None:
    compared, verdicts = 0, set()
    for name in OBJECTS:
        kind, schema = getattr(types, name), without_bounds(DOCUMENT.draft4(DOCUMENT.schemas[name]))
        if not readable(kind):
            continue
        reference = Draft4Validator(schema)
        simplest, *samples = Samples(schema)
        for value in [simplest, *samples, *changed(simplest, list(schema["properties"]))]:
            verdict = reference.is_valid(value)
            assert fits(kind, value) is verdict, (name, value)
            compared += 1
            verdicts.add((name, verdict))
    assert compared > 2000
    assert len(verdicts) > len(OBJECTS)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "nullable": True}, "int | None"),
        ({"$ref": "#/components/schemas/A", "nullable": True}, "A | None"),
        ({"type": "string", "enum": ["a", "b"], "nullable": True}, 'Literal["a", "b"] | None'),
        ({"type": "string", "nullable": True, "enum": [None]}, "None"),
        ({"type": "boolean", "enum": [True]}, "Literal[True]"),
        ({"type": "array", "items": {"type": "array", "items": {}}}, "list[list[Json]]"),
        ({"type": "object"}, "Mapping[str, Json]"),
        (
            {"type": "object", "additionalProperties": {"type": "number", "nullable": True}},
            "Mapping[str, float | None]",
        ),
        (
            {
                "anyOf": [
                    {"type": "string", "nullable": True},
                    {"$ref": "#/components/schemas/A"},
                    {"type": "object", "nullable": True, "enum": [None]},
                ]
            },
            "str | A | None",
        ),
        ({"anyOf": [{"type": "string"}, {}]}, "Json"),
    ],
)
def test_a_schema_has_a_type(schema: dict[str, Any], expected: str) -> None:
    assert expected == expression(schema)


def test_an_object_within_another_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name in components/schemas"):
        expression({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}})


def test_types_may_speak_of_themselves_and_of_each_other(imported: Callable[[str], ModuleType]) -> None:
    tree = {
        "Tree": {
            "description": "A tree. It grows.",
            "properties": {"parts": {"$ref": "#/components/schemas/Parts"}},
            "required": ["parts"],
        },
        "Parts": {
            "description": "Its parts.",
            "type": "array",
            "items": {"$ref": "#/components/schemas/Tree"},
        },
    }
    made = imported(types_of(Document({"paths": {}, "components": {"schemas": tree}})))
    assert fits(made.Tree, {"parts": [{"parts": []}]})
    assert not fits(made.Tree, {"parts": [{"part": []}]})
    assert made.Tree.__doc__ == "A tree."


def test_what_only_answers_have_is_final() -> None:
    (text,) = render().values()
    assert "@final\nclass TextDelta(" in text
    assert "@final\nclass GenerateParameters(" not in text


def test_each_type_stands_after_those_it_speaks_of() -> None:
    schemas: dict[str, Any] = {
        "A": {"type": "array", "items": {"$ref": "#/components/schemas/C"}},
        "B": {"type": "string"},
        "C": {"properties": {"b": {"$ref": "#/components/schemas/B"}}},
    }
    assert in_order(schemas) == ["B", "C", "A"]


def test_a_description_is_told_by_its_first_sentence() -> None:
    assert first_sentence("How far,\n  1.5 at most. More.") == "How far, 1.5 at most."


def without_bounds(schema: Any) -> Any:
    """Leave out what types don't say: how large and how long."""
    if isinstance(schema, list):
        return [without_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {"minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"}
    return {key: without_bounds(value) for key, value in schema.items() if key not in bounds}
