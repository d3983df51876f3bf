"""Tools as TGI and OpenAI write them, and which of them the answer may call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.custom_tools import custom_tool
from handlers.wire.types import (
    AllowedFunction,
    AllowedTools,
    ChatRequest,
    ChatTokenizeRequest,
    CustomFormat,
    CustomToolFormat,
    FunctionDefinition,
    NamedToolChoice,
)
from handlers.wire.types import Tool as WireTool
from inference.errors import InvalidInput, Member, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool, ToolUse

AUTO, NONE, REQUIRED = "auto", "none", "required"
ALLOWED: Final = "allowed_tools"
FUNCTION: Final = "function"
CUSTOM: Final = "custom"
BELONGS: Belongs = {FUNCTION: (FUNCTION,), CUSTOM: (CUSTOM,)}
OF_CHOICES: Belongs = {**BELONGS, ALLOWED: (ALLOWED,)}
OF_FORMATS: Belongs = {"text": (), "grammar": ("grammar",)}


@dataclass(frozen=True, slots=True)
class Offered:
    """What is offered to the model, and how much of that it may call."""

    use: ToolUse | None  # None: nothing is called
    left_out: tuple[str, ...] = ()  # what calls can't be held to, as `x-ignored-parameters` names it


def to_tools(body: ChatRequest | ChatTokenizeRequest) -> Offered:
    """Return the tools that the answer may call and how.

    An empty list is no tools. A tool that is named is the only one that is shown, and is called once. Raises
    InvalidInput for a tool that isn't one, ToolRefused for the choice of one that isn't there.
    """
    tools, left_out = _tools(body.get("tools") or ())
    given = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls") is not False
    if isinstance(given, Mapping) and given.get("type") == ALLOWED:
        tools, choice = _among(tools, given)
        return Offered(to_use(tools, choice, "", parallel=parallel), left_out)
    if given is None or isinstance(given, str):
        choice = given or AUTO
        word, name = (choice, "") if choice in (AUTO, NONE, REQUIRED) else ("", choice)
        return Offered(to_use(tools, word, name, parallel=parallel), left_out)
    name, is_custom = _chosen(given)
    same_kind = tuple(tool for tool in tools if tool.takes_text == is_custom)
    return Offered(to_use(same_kind, "", name, parallel=parallel), left_out)


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


def _tools(given: Sequence[WireTool]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Return the tools, and the members that calls can't be held to."""
    tools, left_out = [], []
    for place, tool in enumerate(given):
        made, is_held = _tool(tool, f"tools[{place}]")
        tools.append(made)
        left_out += [] if is_held else [f"tools[].{CUSTOM}.format"]
    refuse_namesakes(tools)
    return tuple(tools), tuple(dict.fromkeys(left_out))


def _tool(tool: WireTool, where: str) -> tuple[Tool, bool]:
    """Return a tool, and whether its calls are held to what it takes, as far as can be seen here."""
    kind, function, custom = tool["type"], tool.get(FUNCTION), tool.get(CUSTOM)
    refuse_others(tool, BELONGS, kind, where)
    if kind == FUNCTION and function is not None:
        return _function(function, f"{where}.{FUNCTION}"), True
    if kind != CUSTOM or custom is None:
        raise unlike(kind, where)
    at = f"{where}.{CUSTOM}"
    if not custom["name"]:
        raise InvalidInput(Member(f"{at}.name"), " cannot be empty")
    form, format_at = _format(custom.get("format"), f"{at}.format")
    return custom_tool(custom["name"], custom.get("description"), form, at, format_at)


def unlike(kind: str, where: str) -> InvalidInput:
    """Return the error for a tool, or a call, that is none of the types."""
    return InvalidInput(
        Member(where),
        f" must be of type {FUNCTION!r} and have a `{FUNCTION}`, or of type {CUSTOM!r} and have a "
        f"`{CUSTOM}`. Given: {kind!r}",
    )


def _format(given: CustomToolFormat | None, where: str) -> tuple[CustomFormat | None, str]:
    """Return the form of a custom tool's input as Responses have it, and its place in the tool."""
    if given is None:
        return None, "format"
    refuse_others(given, OF_FORMATS, given["type"], where)
    grammar = given.get("grammar")
    if given["type"] == "text":
        return {"type": "text"}, "format"
    if grammar is None:
        raise InvalidInput(Member(where), " is of type 'grammar' and has no `grammar`: add it")
    made: CustomFormat = {"type": "grammar", **grammar}
    return made, "format.grammar"


def _function(function: FunctionDefinition, where: str) -> Tool:
    if not function["name"]:
        raise InvalidInput(Member(f"{where}.name"), " cannot be empty")
    return Tool(
        name=function["name"],
        description=function.get("description"),
        parameters=_parameters(function, where),
        strict=function.get("strict") is True,
        at=where,
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


def _chosen(given: NamedToolChoice | AllowedFunction) -> tuple[str, bool]:
    """Return the name of the tool that is chosen, and whether it is a custom one.

    In an object any word is a name: a function may be called `none`.
    """
    kind = given.get("type") or FUNCTION
    refuse_others(given, OF_CHOICES, kind, "tool_choice")
    named = given.get(CUSTOM) if kind == CUSTOM else given.get(FUNCTION) if kind == FUNCTION else None
    if named is None:
        raise InvalidInput(
            Member("tool_choice"),
            " must be 'none', 'auto', 'required', a function's name, "
            '{"type": "function", "function": {"name": ...}}, {"type": "custom", "custom": {"name": ...}}, '
            'or {"type": "allowed_tools", "allowed_tools": {"tools": [...]}}',
        )
    return named["name"], kind == CUSTOM


def _among(tools: tuple[Tool, ...], given: NamedToolChoice) -> tuple[tuple[Tool, ...], str]:
    """Return the tools that are allowed, and whether one is required, as a word.

    Raises InvalidInput for a choice that can't be understood, ToolRefused for a tool that isn't there.
    """
    allowed = given.get(ALLOWED)
    refuse_others(given, OF_CHOICES, ALLOWED, "tool_choice")
    if not allowed or not allowed["tools"]:
        raise InvalidInput(
            Member("tool_choice"),
            f" is of type {ALLOWED!r} and has no `{ALLOWED}.tools`: name those that are",
        )
    wanted = [
        _allowed(tool, f"tool_choice.{ALLOWED}.tools[{place}]") for place, tool in enumerate(allowed["tools"])
    ]
    known = {(tool.name, tool.takes_text) for tool in tools}
    unknown = next((name for name, is_custom in wanted if (name, is_custom) not in known), None)
    if unknown is not None:
        raise ToolRefused(Member("tool_choice", f"Tool with name {unknown}"), " not found")
    return tuple(tool for tool in tools if (tool.name, tool.takes_text) in wanted), _mode(allowed)


def _allowed(tool: AllowedFunction, where: str) -> tuple[str, bool]:
    kind = tool.get("type") or FUNCTION
    refuse_others(tool, BELONGS, kind, where)
    named = tool.get(CUSTOM) if kind == CUSTOM else tool.get(FUNCTION) if kind == FUNCTION else None
    if named is None:
        raise InvalidInput(
            Member(where),
            f" must be of type {FUNCTION!r}, and name its `{FUNCTION}`, or of type {CUSTOM!r}, and "
            f"name its `{CUSTOM}`",
        )
    return named["name"], kind == CUSTOM


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
