"""Tools as OpenAI's Responses write them, flat, and which of them the answer may call."""

from __future__ import annotations

from typing import Literal

import orjson

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.tools import AUTO, NONE, REQUIRED, refuse_namesakes, to_use
from handlers.wire.types import (
    ChosenFunction,
    InputTokensRequest,
    ResponsesNamedChoice,
    ResponsesRequest,
    ResponsesTool,
    ResponsesToolChoice,
    ResponseTool,
    ResponseToolChoice,
)
from inference.errors import InvalidInput, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool, ToolUse

FUNCTION, ALLOWED = "function", "allowed_tools"
SCHEMAS_AT = "parameters"  # of a tool
BELONGS: Belongs = {FUNCTION: ("name",), ALLOWED: ("mode", "tools")}


def to_tools(body: ResponsesRequest | InputTokensRequest) -> ToolUse | None:
    """Return the tools that the answer may call and how; None where it calls none.

    Raises InvalidInput for a tool that isn't a function, ToolRefused for the choice of one that isn't there.
    """
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.get("tools") or ()))
    refuse_namesakes(tools, "name")
    parallel = body.get("parallel_tool_calls") is not False  # of no effect where an input is counted
    choice = told_choice(body.get("tool_choice"))
    word, name = "", ""
    if isinstance(choice, str):
        word = choice
    elif choice["type"] == "function":
        name = choice["name"]
    else:
        tools, word = _among(tools, choice["tools"]), choice["mode"]
    return to_use(tools, word, name, parallel=parallel, schemas_at=SCHEMAS_AT)


def told_tool(tool: ResponsesTool) -> ResponseTool:
    """Return a tool as an answer echoes it."""
    return {
        "type": "function",
        "name": tool.get("name") or "",
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict") is True,
    }


def told_choice(given: ResponsesToolChoice | None) -> ResponseToolChoice:
    """Return the choice as it is understood, and echoed; raise InvalidInput for one that isn't."""
    if given is None or given == AUTO:
        return "auto"
    if given == NONE:
        return "none"
    if given == REQUIRED:
        return "required"
    if isinstance(given, str):
        raise InvalidInput(
            f"`tool_choice` is {given!r}, and is 'none', 'auto', 'required', or an object that names a tool"
        )
    refuse_others(given, BELONGS, given["type"], "tool_choice")
    if given["type"] == ALLOWED:
        return {"type": "allowed_tools", "mode": _mode(given), "tools": _allowed(given)}
    return _function(given["type"], given.get("name"), "tool_choice")


def _tool(tool: ResponsesTool, where: str) -> Tool:
    if tool["type"] != FUNCTION:
        raise InvalidInput(
            f"`{where}.type` is {tool['type']!r}, and this server runs no tools itself: offer a tool of type "
            f"{FUNCTION!r}, and answer its calls"
        )
    if not tool.get("name"):
        raise InvalidInput(
            f"`{where}` has no `name`: give `name`, `description` and `parameters` beside `type`"
        )
    schema = tool.get("parameters")
    try:
        orjson.dumps([[[[[schema]]]]])  # as deep as it is echoed, also where it can't be called
    except orjson.JSONEncodeError as error:  # it goes 254 levels deep
        raise InvalidInput(f"`{where}.parameters` can't be written as JSON: {error}") from None
    return Tool(
        name=tool.get("name") or "",
        description=tool.get("description"),
        parameters=NO_ARGUMENTS if schema is None else schema,
        strict=tool.get("strict") is True,
    )


def _among(tools: tuple[Tool, ...], allowed: list[ChosenFunction]) -> tuple[Tool, ...]:
    """Return the tools that are allowed; raise ToolRefused for one that isn't there."""
    names = {tool.name for tool in tools}
    for function in allowed:
        if function["name"] not in names:
            raise ToolRefused(f"Tool with name {function['name']} not found", "tool_choice")
    wanted = {function["name"] for function in allowed}
    return tuple(tool for tool in tools if tool.name in wanted)


def _allowed(given: ResponsesNamedChoice) -> list[ChosenFunction]:
    tools = given.get("tools")
    if not tools:
        raise InvalidInput(f"`tool_choice` is of type {ALLOWED!r} and has no `tools`: name those that are")
    return [
        _function(tool["type"], tool.get("name"), f"tool_choice.tools[{place}]")
        for place, tool in enumerate(tools)
    ]


def _mode(given: ResponsesNamedChoice) -> Literal["auto", "required"]:
    mode = given.get("mode")
    if mode == REQUIRED:
        return "required"
    if mode is None or mode == AUTO:
        return "auto"
    raise InvalidInput(f"`tool_choice.mode` is {mode!r}, and is {AUTO!r} or {REQUIRED!r}")


def _function(kind: str, name: str | None, where: str) -> ChosenFunction:
    if kind != FUNCTION:
        raise InvalidInput(
            f"`{where}.type` is {kind!r}, and this server runs no tools itself: choose a {FUNCTION!r}"
        )
    if not name:
        raise InvalidInput(f"`{where}` has no `name`: name the function")
    return {"type": "function", "name": name}
