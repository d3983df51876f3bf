from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.tools import to_tools
from inference.errors import InvalidInput, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool, ToolUse

SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}}
GIVEN = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]
WEATHER = Tool(name="weather", description="Tells it.", parameters=SCHEMA, at="tools[0].function")
TIME = Tool(name="time", parameters=NO_ARGUMENTS, at="tools[1].function")
BOTH = (WEATHER, TIME)
FORMS = (
    "`tool_choice` must be 'none', 'auto', 'required', a function's name, "
    '{"type": "function", "function": {"name": ...}}, or '
    '{"type": "allowed_tools", "allowed_tools": {"tools": [...]}}'
)


def use_of(**members: Any) -> ToolUse | None:
    body: Any = {"tools": GIVEN} | members
    return to_tools(body)


def function(**members: Any) -> Any:
    return {"tools": [{"type": "function", "function": {"name": "f"} | members}]}


@pytest.mark.parametrize("members", [{}, {"tool_choice": None}, {"tool_choice": "auto"}])
def test_without_a_choice_the_model_decides(members: dict[str, Any]) -> None:
    assert use_of(**members) == ToolUse(tools=BOTH, required=False, parallel=True)


def test_one_can_be_required() -> None:
    assert use_of(tool_choice="required") == ToolUse(tools=BOTH, required=True, parallel=True)


@pytest.mark.parametrize(
    "choice",
    [
        "time",
        {"type": "function", "function": {"name": "time"}},
        {"function": {"name": "time"}},
        {"type": None, "function": {"name": "time"}},
    ],
)
def test_the_one_that_is_named_is_shown_alone_and_called_once(choice: Any) -> None:
    assert use_of(tool_choice=choice) == ToolUse(tools=(TIME,), required=True, parallel=False)


def among(*names: str, **members: Any) -> Any:
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"tools": functions} | members}


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (among("time"), ToolUse(tools=(TIME,), required=False, parallel=True)),
        (among("time", mode="auto"), ToolUse(tools=(TIME,), required=False, parallel=True)),
        (among("time", mode="required"), ToolUse(tools=(TIME,), required=True, parallel=True)),
        (
            among("time", "weather", "time", mode="required"),
            ToolUse(tools=BOTH, required=True, parallel=True),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": "time"}}]}},
            ToolUse(tools=(TIME,), required=False, parallel=True),
        ),
    ],
)
def test_of_some_that_are_allowed_the_others_are_not_shown(choice: Any, use: ToolUse) -> None:
    assert use_of(tool_choice=choice) == use


@pytest.mark.parametrize(("given", "parallel"), [(None, True), (True, True), (False, False)])
def test_several_calls_in_an_answer_can_be_forbidden(given: bool | None, parallel: bool) -> None:
    use = use_of(parallel_tool_calls=given)
    assert use is not None
    assert parallel == use.parallel


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": None},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tools": None, "tool_choice": "none"},
        {"tools": GIVEN, "tool_choice": "none"},
    ],
)
def test_without_tools_or_with_none_chosen_there_are_no_calls(body: Any) -> None:
    assert to_tools(body) is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"tools": GIVEN, "tool_choice": "fly"}, "Tool with name fly not found"),
        ({"tools": GIVEN, "tool_choice": {"function": {"name": "fly"}}}, "Tool with name fly not found"),
        ({"tools": [], "tool_choice": "fly"}, "Tool with name fly not found"),
        ({"tools": GIVEN, "tool_choice": among("time", "fly")}, "Tool with name fly not found"),
        ({"tools": [], "tool_choice": among("fly")}, "Tool with name fly not found"),
        (
            {"tool_choice": "required"},
            "`tool_choice` is 'required' and there are no `tools`: give at least one",
        ),
    ],
)
def test_a_choice_that_can_not_be_made_is_refused(body: Any, complaint: str) -> None:
    with pytest.raises(ToolRefused) as refusal:
        to_tools(body)
    assert str(refusal.value) == complaint


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            {"tools": [GIVEN[0], {"type": "custom"}]},
            "`tools[1]` must be of type 'function' and have a `function`. Given: 'custom'",
        ),
        (
            {"tools": [{"type": "function"}]},
            "`tools[0]` must be of type 'function' and have a `function`. Given: 'function'",
        ),
        (function(name=""), "`tools[0].function.name` cannot be empty"),
        (
            {"tools": [*GIVEN, GIVEN[0]]},
            "`tools[2].function.name` is 'weather', as is that of tools[0]: give each tool a name of its own",
        ),
        (
            function(parameters="{}"),
            "`tools[0].function.parameters` must be a JSON Schema, as an object",
        ),
        (function(arguments=[]), "`tools[0].function.arguments` must be a JSON Schema, as an object"),
        (
            function(arguments={}, parameters=SCHEMA),
            "`tools[0].function` has `parameters` and `arguments`: they mean the same, give one",
        ),
        (
            {"tools": GIVEN, "tool_choice": {"type": "tool", "function": {"name": "time"}}},
            FORMS,
        ),
        (
            {"tools": GIVEN, "tool_choice": among("time", mode="none")},
            "`tool_choice.allowed_tools.mode` is 'none', and is 'auto' or 'required'",
        ),
        (
            {"tools": GIVEN, "tool_choice": {**among("time"), "type": "function"}},
            "`tool_choice.allowed_tools` goes with the type 'allowed_tools': leave one of them out",
        ),
        (
            {"tools": GIVEN, "tool_choice": {**among("time"), "function": {"name": "time"}}},
            "`tool_choice.function` does not go with the type 'allowed_tools': leave it out",
        ),
        *(
            (
                {"tools": GIVEN, "tool_choice": choice},
                "`tool_choice` is of type 'allowed_tools' and has no `allowed_tools.tools`: "
                "name those that are",
            )
            for choice in (among(), {"type": "allowed_tools"})
        ),
        *(
            (
                {"tools": GIVEN, "tool_choice": among("time", tools=[tool])},
                "`tool_choice.allowed_tools.tools[0]` must be of type 'function', and name its `function`",
            )
            for tool in ({"type": "custom", "function": {"name": "time"}}, {"type": "function"}, {})
        ),
        (
            {"tools": GIVEN, "tool_choice": {"type": "function"}},
            FORMS,
        ),
    ],
)
def test_what_is_no_tool_is_refused_with_its_place(body: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        to_tools(body)
    assert str(refusal.value) == complaint


def test_schemas_nested_without_end_are_not_the_same() -> None:
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for _ in range(5000):
        one, other = {"a": one}, {"a": other}
    with pytest.raises(InvalidInput, match="they mean the same, give one"):
        to_tools(function(parameters=one, arguments=other))


@pytest.mark.parametrize(
    "members", [{"parameters": SCHEMA}, {"arguments": SCHEMA}, {"parameters": SCHEMA, "arguments": SCHEMA}]
)
def test_the_schema_of_the_arguments_has_two_names(members: dict[str, Any]) -> None:
    use = to_tools(function(**members))
    assert use is not None
    assert use.tools[0].parameters == SCHEMA


@pytest.mark.parametrize("word", ["none", "auto", "required"])
def test_a_function_may_be_called_as_a_choice_is(word: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": name}} for name in (word, "other")]
    body: Any = {
        "messages": [],
        "tools": tools,
        "tool_choice": {"type": "function", "function": {"name": word}},
    }
    use = to_tools(body)
    assert use is not None
    assert [tool.name for tool in use.tools] == [word]
    assert (use.required, use.parallel) == (True, False)
