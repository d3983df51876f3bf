"""Tools as OpenAI's Responses write them, alone and in groups: each a function that the model may call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.custom_tools import custom_tool
from handlers.wire.images import quoted
from handlers.wire.types import GroupedTool, ResponsesTool
from inference.errors import InvalidInput, Member
from inference.tools.types import NO_ARGUMENTS, Tool, anywhere

FUNCTION, CUSTOM, NAMESPACE, SEARCH = "function", "custom", "namespace", "tool_search"
CLIENT = "client"  # who runs a search for tools
UNGROUPED = "functions"  # what OpenAI calls the group of the tools that are of none
BETWEEN = "__"  # a group's name and a tool's, as in the names of MCP's tools
HOSTED = frozenset(  # types of tools that OpenAI runs itself, or that have items of their own
    (
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("file_search", "code_interpreter", "image_generation", "mcp", "programmatic_tool_calling"),
        *("computer", "computer_use", "computer_use_preview", "local_shell", "shell", "apply_patch"),
    )
)
BELONGS: Belongs = {
    FUNCTION: ("name", "parameters", "strict"),
    CUSTOM: ("name", "format"),
    NAMESPACE: ("name", "tools"),
    SEARCH: ("parameters", "execution"),
}
MOST = 128


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that the client runs, by the names that it has for it."""

    kind: str
    name: str
    namespace: str | None
    tool: Tool  # as the model knows it
    where: str  # in the request


@dataclass(frozen=True, slots=True)
class Offers:
    """What the model may call, by the names by which it knows it."""

    by_name: Mapping[str, Offer]
    left_out: tuple[str, ...]  # what the server doesn't do, as `x-ignored-parameters` names it


def is_hosted(tool: Mapping[str, object]) -> bool:
    """Return whether OpenAI runs a tool itself."""
    return tool["type"] in HOSTED or (tool["type"] == SEARCH and tool.get("execution") != CLIENT)


def offers_search(tools: Iterable[ResponsesTool]) -> bool:
    """Return whether a search for tools is among them that the client runs."""
    return any(tool["type"] == SEARCH and not is_hosted(tool) for tool in tools)


def known_as(namespace: str | None, name: str) -> str:
    """Return the name by which the model knows a tool."""
    return name if namespace in (None, "", UNGROUPED) else f"{namespace}{BETWEEN}{name}"


def to_offers(tools: Iterable[ResponsesTool], where: str) -> Offers:
    """Return the tools of a list that stands at `where`; raise InvalidInput for one that isn't one."""
    found: dict[str, Offer] = {}
    left_out: list[str] = []
    for offer in _read(tools, where, left_out):
        name = offer.tool.name
        other = found.setdefault(name, offer)
        if other is not offer:
            raise InvalidInput(
                Member(f"{offer.where}.name"),
                f" is {quoted(name)}, as is that of {other.where}: give each tool a name of its own",
            )
        check_count(len(found), where)
    return Offers(found, tuple(left_out))


def together(offered: Sequence[Offers]) -> Offers:
    """Return all that was offered; of two tools with one name, the later one."""
    found = {name: offer for offers in offered for name, offer in offers.by_name.items()}
    check_count(len(found), "tools")
    return Offers(found, tuple(dict.fromkeys(name for offers in offered for name in offers.left_out)))


def check_count(count: int, where: str) -> None:
    """Raise InvalidInput for more tools than one request may have."""
    if count > MOST:
        raise InvalidInput(
            Member(where),
            f" are more than {MOST} tools, those of groups and of `input` counted: leave some out",
        )


def _read(tools: Iterable[ResponsesTool], where: str, left_out: list[str]) -> Iterator[Offer]:
    for place, tool in enumerate(tools):
        at = f"{where}[{place}]"
        kind = _kind(tool, at, (FUNCTION, CUSTOM, NAMESPACE, SEARCH), left_out)
        if kind == NAMESPACE:
            yield from _grouped(tool, at, left_out)
        elif kind == SEARCH:
            description, schema = tool.get("description"), tool.get("parameters")
            yield Offer(SEARCH, SEARCH, None, _function(SEARCH, description, schema, at), at)
        elif kind is not None:
            yield _single(tool, at, None, left_out)


def _grouped(group: ResponsesTool, where: str, left_out: list[str]) -> Iterator[Offer]:
    """Yield the tools of a group, the first one with what is said of all of them."""
    name, tools = _name(group, where), group.get("tools")
    if tools is None:
        raise InvalidInput(Member(where), f" is of type {NAMESPACE!r} and has no `tools`: add them")
    about = group.get("description")
    for place, tool in enumerate(tools):
        at = f"{where}.tools[{place}]"
        if _kind(tool, at, (FUNCTION, CUSTOM), left_out) is None:
            continue
        offer = _single(tool, at, name, left_out)
        if about:
            said = "\n\n".join(filter(None, (about, offer.tool.description)))
            offer, about = replace(offer, tool=replace(offer.tool, description=said)), None
        yield offer


def _kind(
    tool: ResponsesTool | GroupedTool, where: str, known: Sequence[str], left_out: list[str]
) -> str | None:
    """Return a tool's type, or None and a note for one that is left out."""
    kind = tool["type"]
    if is_hosted(tool):
        left_out.append(f"{anywhere(where)}.{kind}")
        return None
    if kind not in known:
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {quoted(kind)}, and is one of {', '.join(known)}: offer a tool of type "
            f"{FUNCTION!r}, and answer its calls",
        )
    refuse_others(tool, BELONGS, kind, where)
    return kind


def _single(tool: ResponsesTool | GroupedTool, where: str, group: str | None, left_out: list[str]) -> Offer:
    """Return a function, or a custom tool."""
    kind, name, description = tool["type"], _name(tool, where), tool.get("description")
    known = known_as(group, name)
    if kind == CUSTOM:
        made, is_held = custom_tool(known, description, tool.get("format"), where)
        if not is_held:
            left_out.append(f"{anywhere(where)}.format")
    else:
        made = _function(known, description, tool.get("parameters"), where, tool.get("strict") is True)
    return Offer(kind, name, group, made, where)


def _name(tool: ResponsesTool | GroupedTool, where: str) -> str:
    name = tool.get("name")
    if not name:
        more = {FUNCTION: "`name`, `description` and `parameters`", NAMESPACE: "`name` and `tools`"}
        needs = more.get(tool["type"], "`name` and `description`")
        raise InvalidInput(Member(where), f" has no `name`: give {needs} beside `type`")
    return name


def _function(
    name: str, description: str | None, schema: Mapping[str, object] | None, where: str, strict: bool = False
) -> Tool:
    try:
        orjson.dumps([[[[[[[schema]]]]]]])  # as deep as it is echoed, also where it can't be called
    except orjson.JSONEncodeError as error:  # it goes 254 levels deep
        raise InvalidInput(Member(f"{where}.parameters"), f" can't be written as JSON: {error}") from None
    return Tool(
        name=name,
        description=description,
        parameters=NO_ARGUMENTS if schema is None else schema,
        strict=strict,
        at=where,
    )
