"""Tools as Anthropic's Messages write them, and which of them the answer may use."""

from __future__ import annotations

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.images import quoted
from handlers.wire.tools import AUTO, NONE, REQUIRED, refuse_namesakes, to_use
from handlers.wire.types import ClientTool, MessagesRequest, MessageTokensRequest, ToolUseChoice
from inference.errors import InvalidInput, Member, ToolRefused
from inference.tools.types import NO_ARGUMENTS, Tool, ToolUse

CUSTOM = "custom"
ANY, NAMED = "any", "tool"
WORDS = {AUTO: AUTO, ANY: REQUIRED, NONE: NONE}
BELONGS: Belongs = {**dict.fromkeys(WORDS, ()), NAMED: ("name",)}


def to_tools(body: MessagesRequest | MessageTokensRequest) -> ToolUse | None:
    """Return the tools that the answer may use and how; None where it uses none.

    Raises InvalidInput for a tool that the client doesn't run, ToolRefused for the choice of one that isn't
    there.
    """
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.get("tools") or ()))
    refuse_namesakes(tools)
    choice = body.get("tool_choice") or ToolUseChoice(type=AUTO)
    parallel = not choice.get("disable_parallel_tool_use")
    kind = choice["type"]
    if kind not in BELONGS:
        raise InvalidInput(
            Member("tool_choice.type"), f" is {quoted(kind)}, and is one of {', '.join(BELONGS)}"
        )
    refuse_others(choice, BELONGS, kind, "tool_choice")
    if kind == ANY and not tools:
        raise ToolRefused(
            Member("tool_choice"), " is of type 'any' and there are no `tools`: give at least one"
        )
    name = choice.get("name") or ""
    if kind == NAMED and not name:
        raise InvalidInput(Member("tool_choice"), f" is of type {NAMED!r} and has no `name`: name the tool")
    return to_use(tools, WORDS.get(kind, ""), name, parallel=parallel)


def _tool(tool: ClientTool, where: str) -> Tool:
    kind, schema = tool.get("type"), tool.get("input_schema")
    if kind not in (None, CUSTOM):
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {quoted(str(kind))}, and this server runs no tools itself: offer a tool of "
            f"type {CUSTOM!r} with an `input_schema`, and answer its calls",
        )
    if not tool["name"]:
        raise InvalidInput(Member(f"{where}.name"), " cannot be empty")
    return Tool(
        name=tool["name"],
        description=tool.get("description"),
        parameters=NO_ARGUMENTS if schema is None else schema,
        strict=tool.get("strict") is True,
        at=where,
        schema="input_schema",
    )
