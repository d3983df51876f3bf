"""Tools as TGI and OpenAI write them, and which of them the answer may call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from handlers.wire.types import (
    AllowedFunction,
    AllowedTools,
    ChatRequest,
    ChatTokenizeRequest,
    FunctionDefinition,
    NamedToolChoice,
    ToolChoice,
)
from handlers.wire.types import Tool as WireTool
from inference.errors import InvalidInput, Member, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool, ToolUse

AUTO, NONE, REQUIRED = "auto", "none", "required"
ALLOWED: Final = "allowed_tools"


def to_tools(body: ChatRequest | ChatTokenizeRequest) -> ToolUse | None:
    """Return the tools that the answer may call and how; None where it calls none.

    An empty list is no tools. A tool that is named is the only one that is shown, and is called once. Raises
    InvalidInput for a tool that isn't one, ToolRefused for the choice of one that isn't there.
    """
    tools = _tools(body.get("tools") or ())
    given = body.get("tool_choice")
    if isinstance(given, Mapping) and given.get("type") == ALLOWED:
        tools, choice, name = *_among(tools, given), ""
    else:
        choice, name = _choice(given)
    return to_use(tools, choice, name, parallel=body.get("parallel_tool_calls") is not False)


def to_use(tools: tuple[Tool, ...], choice: str, name: str, *, parallel: bool) -> ToolUse | None:
    """Return how tools are used by a choice that is a word, or "" and a tool's name; None: none is called."""
    if choice == NONE or (choice == AUTO and not tools):
        return None
    if choice in (AUTO, REQUIRED):
        if not tools:
            raise ToolRefused(
                Member("tool_choice"), " is 'required' and there are no `tools`: give at least one"
            )
        required = choice == REQUIRED
        return ToolUse(tools=tools, required=required, parallel=parallel)
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise ToolRefused(Member("tool_choice", f"Tool with name {name}"), " not found")
    return ToolUse(tools=named, required=True, parallel=False)


def same(value: object, other: object) -> bool:
    """Return whether two values of JSON are equal; those nested without end are not."""
    try:
        return value == other
    except RecursionError:
        return False


def _tools(given: Sequence[WireTool]) -> tuple[Tool, ...]:
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given))
    refuse_namesakes(tools)
    return tools


def _tool(tool: WireTool, where: str) -> Tool:
    function = tool.get("function")
    if tool["type"] != "function" or function is None:
        raise InvalidInput(
            Member(where), f" must be of type 'function' and have a `function`. Given: {tool['type']!r}"
        )
    if not function["name"]:
        raise InvalidInput(Member(f"{where}.function.name"), " cannot be empty")
    return Tool(
        name=function["name"],
        description=function.get("description"),
        parameters=_parameters(function, f"{where}.function"),
        strict=function.get("strict") is True,
        at=f"{where}.function",
    )


def _parameters(function: FunctionDefinition, where: str) -> Mapping[str, object]:
    """Return the schema of the arguments; TGI takes it under two names."""
    schema, other = function.get("parameters"), function.get("arguments")
    if schema is not None and other is not None and not same(schema, other):
        raise InvalidInput(Member(where), " has `parameters` and `arguments`: they mean the same, give one")
    name = "arguments" if schema is None else "parameters"
    schema = other if schema is None else schema
    if schema is None:
        return NO_ARGUMENTS
    if not isinstance(schema, Mapping):
        raise InvalidInput(Member(f"{where}.{name}"), " must be a JSON Schema, as an object")
    return schema


def _choice(given: ToolChoice | None) -> tuple[str, str]:
    """Return the choice as a word, `auto`, `none` or `required`, or else as a function's name.

    In an object any word is a name: a function may be called `none`.
    """
    if given is None:
        return AUTO, ""
    if isinstance(given, str):
        return (given, "") if given in (AUTO, NONE, REQUIRED) else ("", given)
    if given.get(ALLOWED) is not None:
        raise InvalidInput(
            Member(f"tool_choice.{ALLOWED}"), f" goes with the type {ALLOWED!r}: leave one of them out"
        )
    function = given.get("function")
    if given.get("type") not in ("function", None) or function is None:
        raise InvalidInput(
            Member("tool_choice"),
            " must be 'none', 'auto', 'required', a function's name, "
            '{"type": "function", "function": {"name": ...}}, or '
            '{"type": "allowed_tools", "allowed_tools": {"tools": [...]}}',
        )
    return "", function["name"]


def _among(tools: tuple[Tool, ...], given: NamedToolChoice) -> tuple[tuple[Tool, ...], str]:
    """Return the tools that are allowed, and whether one is required, as a word.

    Raises InvalidInput for a choice that can't be understood, ToolRefused for a tool that isn't there.
    """
    allowed = given.get(ALLOWED)
    if given.get("function") is not None:
        raise InvalidInput(
            Member("tool_choice.function"), f" does not go with the type {ALLOWED!r}: leave it out"
        )
    if not allowed or not allowed["tools"]:
        raise InvalidInput(
            Member("tool_choice"),
            f" is of type {ALLOWED!r} and has no `{ALLOWED}.tools`: name those that are",
        )
    names = [
        _allowed(tool, f"tool_choice.{ALLOWED}.tools[{place}]") for place, tool in enumerate(allowed["tools"])
    ]
    unknown = next((name for name in names if name not in {tool.name for tool in tools}), None)
    if unknown is not None:
        raise ToolRefused(Member("tool_choice", f"Tool with name {unknown}"), " not found")
    return tuple(tool for tool in tools if tool.name in names), _mode(allowed)


def _allowed(tool: AllowedFunction, where: str) -> str:
    function = tool.get("function")
    if tool.get("type") not in ("function", None) or function is None:
        raise InvalidInput(Member(where), " must be of type 'function', and name its `function`")
    return function["name"]


def _mode(allowed: AllowedTools) -> str:
    mode = allowed.get("mode") or AUTO
    if mode not in (AUTO, REQUIRED):
        raise InvalidInput(
            Member(f"tool_choice.{ALLOWED}.mode"), f" is {mode!r}, and is {AUTO!r} or {REQUIRED!r}"
        )
    return mode


def refuse_namesakes(tools: Iterable[Tool]) -> None:
    """Raise InvalidInput where two tools have one name."""
    first: dict[str, int] = {}
    for place, tool in enumerate(tools):
        if first.setdefault(tool.name, place) != place:
            raise InvalidInput(
                Member(f"{tool.at}.name"),
                f" is {tool.name!r}, as is that of tools[{first[tool.name]}]: "
                "give each tool a name of its own",
            )
