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
    '{"type": "function", "function": {"name": ...}}, {"type": "custom", "custom": {"name": ...}}, or '
    '{"type": "allowed_tools", "allowed_tools": {"tools": [...]}}'
)
TYPES = "must be of type 'function' and have a `function`, or of type 'custom' and have a `custom`."


def use_of(**members: Any) -> ToolUse | None:
    body: Any = {"tools": GIVEN} | members
    return to_tools(body).use


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
    assert to_tools(body).use is None


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
            f"`tools[1]` {TYPES} Given: 'custom'",
        ),
        (
            {"tools": [{"type": "function"}]},
            f"`tools[0]` {TYPES} Given: 'function'",
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
            "`tool_choice.allowed_tools` does not go with the type 'function': leave it out",
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
                "`tool_choice.allowed_tools.tools[0]` must be of type 'function', and name its `function`, "
                "or of type 'custom', and name its `custom`",
            )
            for tool in ({"type": "custom"}, {"type": "function"}, {}, {"type": "tool"})
        ),
        (
            {
                "tools": GIVEN,
                "tool_choice": among("time", tools=[{"type": "custom", "function": {"name": "f"}}]),
            },
            "`tool_choice.allowed_tools.tools[0].function` does not go with the type 'custom': leave it out",
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
    use = to_tools(function(**members)).use
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
    use = to_tools(body).use
    assert use is not None
    assert [tool.name for tool in use.tools] == [word]
    assert (use.required, use.parallel) == (True, False)


NOTE = {"type": "custom", "custom": {"name": "note", "description": "Notes it."}}
DIGITS = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
NESTED = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "(" start? ")"'}}


def custom(form: Any) -> Any:
    return {"type": "custom", "custom": {"name": "count", "format": form}}


def test_custom_tools_are_functions_with_a_text() -> None:
    body: Any = {"tools": [GIVEN[1], NOTE, custom(DIGITS)]}
    offered = to_tools(body)
    assert offered.use is not None
    assert [(tool.name, tool.takes_text) for tool in offered.use.tools] == [
        ("time", False),
        ("note", True),
        ("count", True),
    ]
    count = offered.use.tools[2]
    properties = count.parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["input"]["pattern"] == "^(?:[0-9]+)$"
    assert count.member.path == "tools[2].custom.format.grammar.definition"
    assert offered.left_out == ()


def test_a_format_that_calls_can_not_be_held_to_is_named_once() -> None:
    body: Any = {"tools": [custom(NESTED), {**NOTE, "custom": {"name": "n", "format": NESTED}}]}
    assert to_tools(body).left_out == ("tools[].custom.format",)
    assert to_tools({"messages": [], "tools": [custom({"type": "text"})]}).left_out == ()


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "note"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOTE]}},
        "note",
    ],
)
def test_a_custom_tool_can_be_chosen(choice: Any) -> None:
    use = use_of(tools=[*GIVEN, NOTE], tool_choice=choice)
    assert use is not None
    assert use.required
    assert [tool.name for tool in use.tools] == ["note"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "time"}},
        {"type": "function", "function": {"name": "note"}},
        among("note"),
        among("time", tools=[{"type": "custom", "custom": {"name": "time"}}]),
    ],
)
def test_a_tool_is_not_chosen_as_one_of_another_type(choice: Any) -> None:
    with pytest.raises(ToolRefused, match=r"^Tool with name (time|note) not found$"):
        use_of(tools=[*GIVEN, NOTE], tool_choice=choice)


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ({"type": "custom", "custom": {"name": ""}}, "`tools[0].custom.name` cannot be empty"),
        ({**GIVEN[0], **NOTE}, "`tools[0].function` does not go with the type 'custom': leave it out"),
        ({**NOTE, **GIVEN[0]}, "`tools[0].custom` does not go with the type 'function': leave it out"),
        (
            custom({"type": "grammar"}),
            "`tools[0].custom.format` is of type 'grammar' and has no `grammar`: add it",
        ),
        (
            custom({**DIGITS, "type": "text"}),
            "`tools[0].custom.format.grammar` does not go with the type 'text': leave it out",
        ),
        (
            custom({"type": "grammar", "grammar": {"syntax": "regex", "definition": ""}}),
            "`tools[0].custom.format.grammar` is of type 'grammar' and has no `definition`: add it",
        ),
        (
            custom({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a)"}}),
            "`tools[0].custom.format.grammar.definition` closes a group that it doesn't open: write `\\)` "
            "for the sign",
        ),
    ],
)
def test_what_is_no_custom_tool_is_refused_with_its_place(tool: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        use_of(tools=[tool])
    assert str(refusal.value) == complaint


def test_a_custom_tool_and_a_function_have_names_of_their_own() -> None:
    with pytest.raises(InvalidInput, match=r"`tools\[1\].custom.name` is 'time', as is that of tools\[0\]"):
        use_of(tools=[GIVEN[1], {"type": "custom", "custom": {"name": "time"}}])
