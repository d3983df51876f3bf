from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.flat_tools import to_tools, told_choice
from handlers.wire.told_tools import told_tools
from inference.errors import InvalidInput, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
F: Any = {"type": "function", "name": "f", "description": "It does f.", "parameters": SCHEMA, "strict": True}
G: Any = {"type": "function", "name": "g"}


def tools_of(choice: Any = None, *tools: Any, **more: Any) -> Any:
    return to_tools({"input": "Hi", "tools": list(tools), "tool_choice": choice, **more}).use  # type: ignore[arg-type]


def test_functions_are_read_and_their_schemas_are_named_where_they_stand() -> None:
    use = tools_of(None, F, G)
    assert use.tools == (
        Tool(name="f", description="It does f.", parameters=SCHEMA, strict=True, at="tools[0]"),
        Tool(name="g", parameters=NO_ARGUMENTS, at="tools[1]"),
    )
    assert (use.required, use.parallel) == (False, True)
    assert not tools_of(None, F, parallel_tool_calls=False).parallel


def test_a_choice_says_which_may_be_called() -> None:
    named = {"type": "function", "name": "g"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    assert tools_of("none", F) is None
    assert tools_of(None) is None
    assert tools_of("required", F, G).required
    use = tools_of(named, F, G)
    assert ([tool.name for tool in use.tools], use.required, use.parallel) == (["g"], True, False)
    use = tools_of(allowed, F, G)
    assert ([tool.name for tool in use.tools], use.required, use.parallel) == (["g"], True, True)
    assert not tools_of({**allowed, "mode": None}, F, G).required


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({"type": "function", "name": "h"}, ToolRefused),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "h"}]}, ToolRefused),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}, ToolRefused),
        ({"type": "allowed_tools", "tools": [{"type": "namespace", "name": "g"}]}, InvalidInput),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, InvalidInput),
        ({"type": "allowed_tools"}, InvalidInput),
        ({"type": "allowed_tools", "name": "g", "tools": [{"type": "function", "name": "g"}]}, InvalidInput),
        ({"type": "function", "name": "g", "mode": "auto"}, InvalidInput),
        ({"type": "function"}, InvalidInput),
        ({"type": "web_search_preview"}, InvalidInput),
        ("f", InvalidInput),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(choice: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        tools_of(choice, F, G)


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (
            {"type": "functoin", "name": "x"},
            "`tools[1].type` is 'functoin', and is one of function, custom, namespace, tool_search: offer",
        ),
        ({"type": "function", "function": {"name": "f"}}, "`tools[1]` has no `name`: give `name`"),
        (
            {"type": "namespace", "tools": []},
            "`tools[1]` has no `name`: give `name` and `tools` beside `type`",
        ),
        ({"type": "custom"}, "`tools[1]` has no `name`: give `name` and `description` beside `type`"),
        (
            {"type": "namespace", "name": "g"},
            "`tools[1]` is of type 'namespace' and has no `tools`: add them",
        ),
        (F, "`tools[1].name` is 'f', as is that of tools[0]"),
    ],
)
def test_a_tool_that_is_none_is_refused_with_what_to_do(tool: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tools_of(None, F, tool)
    assert message in str(refused.value)


def test_tools_and_choices_are_told_as_they_are_understood() -> None:
    plain = {**G, "description": None, "parameters": None, "strict": False}
    assert told_tools([F, {"type": "mcp"}, G]) == [F, plain]
    allowed: Any = {"type": "allowed_tools", "tools": [{"type": "function", "name": "g", "more": 1}]}
    assert told_choice(None, searches=False) == "auto"
    assert told_choice(allowed, searches=False) == {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "g"}],
    }


def test_a_search_that_the_client_runs_can_be_chosen_and_allowed() -> None:
    chosen: Any = {"type": "tool_search"}
    allowed: Any = {"type": "allowed_tools", "tools": [chosen]}
    told = {"type": "tool_search", "name": "tool_search"}
    assert told_choice(chosen, searches=True) == told
    assert told_choice(allowed, searches=True) == {"type": "allowed_tools", "mode": "auto", "tools": [told]}
    with pytest.raises(InvalidInput, match="runs no tools itself"):
        told_choice(chosen, searches=False)
