"""Which tools the answer to a Responses body may call, of those that the client runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.images import quoted
from handlers.wire.offers import (
    CUSTOM,
    FUNCTION,
    HOSTED,
    SEARCH,
    Offer,
    Offers,
    offers_search,
    to_offers,
    together,
)
from handlers.wire.tools import AUTO, NONE, REQUIRED, to_use
from handlers.wire.types import (
    AllowedTool,
    ChosenFunction,
    InputTokensRequest,
    ResponsesNamedChoice,
    ResponsesRequest,
    ResponsesToolChoice,
    ResponseToolChoice,
)
from inference.errors import InvalidInput, Member, ToolRefused
from inference.tools.types import Tool, ToolUse

ALLOWED = "allowed_tools"
BELONGS: Belongs = {FUNCTION: ("name",), CUSTOM: ("name",), ALLOWED: ("mode", "tools")}


@dataclass(frozen=True, slots=True)
class Offered:
    """What is offered to the model, and how much of that it may call."""

    use: ToolUse | None  # None: nothing is called
    by_name: Mapping[str, Offer]
    left_out: tuple[str, ...]  # what the server doesn't do, as `x-ignored-parameters` names it


def to_tools(body: ResponsesRequest | InputTokensRequest, more: Sequence[Offers] = ()) -> Offered:
    """Return the tools that the answer may call, of a body's own and `more` of its input.

    Raises InvalidInput for a tool that isn't one, ToolRefused for the choice of one that isn't there.
    """
    offers = together([to_offers(body.get("tools") or (), "tools"), *more])
    tools = tuple(offer.tool for offer in offers.by_name.values())
    parallel = body.get("parallel_tool_calls") is not False  # of no effect where an input is counted
    given, searches = body.get("tool_choice"), offers_search(body.get("tools") or ())
    choice = told_choice(given, searches=searches)
    word, name = "", ""
    if isinstance(choice, str):
        word = choice
    elif choice["type"] != "allowed_tools":
        name = _chosen(offers, choice).name
    else:
        tools, word = _among(offers, choice["tools"]), choice["mode"]
    left_out = (*offers.left_out, *_hosted_choices(given, searches))
    if word == REQUIRED and not tools and left_out:
        raise ToolRefused(
            Member("tool_choice"),
            f" is {REQUIRED!r}, and this server runs no tools itself: offer a {FUNCTION!r}, and "
            "answer its calls",
        )
    use = to_use(tools, word, name, parallel=parallel)
    return Offered(use, offers.by_name, left_out)


def told_choice(given: ResponsesToolChoice | None, *, searches: bool) -> ResponseToolChoice:
    """Return the choice as it is understood, and echoed; raise InvalidInput for one that isn't.

    `searches`: the client runs a search for tools, which can be chosen then.
    """
    if given is None or given == AUTO:
        return "auto"
    if given == NONE:
        return "none"
    if given == REQUIRED:
        return "required"
    if isinstance(given, str):
        raise InvalidInput(
            Member("tool_choice"),
            f" is {given!r}, and is 'none', 'auto', 'required', or an object that names a tool",
        )
    refuse_others(given, BELONGS, given["type"], "tool_choice")
    if given["type"] == ALLOWED:
        return {"type": "allowed_tools", "mode": _mode(given), "tools": _allowed(given, searches)}
    return _choice(given, "tool_choice", searches)


def _chosen(offers: Offers, choice: ChosenFunction) -> Tool:
    """Return the one tool that a choice names; raise ToolRefused if there is none, or are several."""
    found = _named(offers.by_name.values(), choice)
    if len(found) > 1:
        raise ToolRefused(
            Member("tool_choice.name"),
            f" is {quoted(choice['name'])}, as {len(found)} tools of groups are called: "
            f"say {found[0].tool.name!r}, or another",
        )
    return found[0].tool


def _among(offers: Offers, allowed: Sequence[ChosenFunction]) -> tuple[Tool, ...]:
    """Return the tools that are allowed, in their order; raise ToolRefused for one that isn't there."""
    wanted = {offer.tool.name for choice in allowed for offer in _named(offers.by_name.values(), choice)}
    return tuple(offer.tool for name, offer in offers.by_name.items() if name in wanted)


def _named(offers: Iterable[Offer], choice: ChosenFunction) -> list[Offer]:
    """Return the tools that a choice names as the model knows them or else by their own names."""
    kind, name = choice["type"], choice["name"]
    same = [offer for offer in offers if offer.kind == kind and name in (offer.tool.name, offer.name)]
    found = [offer for offer in same if offer.tool.name == name] or same
    if not found:
        raise ToolRefused(Member("tool_choice", f"Tool with name {name}"), " not found")
    return found


def _allowed(given: ResponsesNamedChoice, searches: bool) -> list[ChosenFunction]:
    tools = given.get("tools")
    if not tools:
        raise InvalidInput(
            Member("tool_choice"), f" is of type {ALLOWED!r} and has no `tools`: name those that are"
        )
    return [
        _choice(tool, f"tool_choice.tools[{place}]", searches)
        for place, tool in enumerate(tools)
        if not _is_hosted(tool, searches)
    ]


def _hosted_choices(given: ResponsesToolChoice | None, searches: bool) -> list[str]:
    """Return how tools are named that OpenAI runs itself, and that may be called."""
    tools = (given.get("tools") if isinstance(given, Mapping) else None) or ()
    return [f"tool_choice.tools[].{tool['type']}" for tool in tools if _is_hosted(tool, searches)]


def _is_hosted(tool: AllowedTool, searches: bool) -> bool:
    return tool["type"] in HOSTED or (tool["type"] == SEARCH and not searches)


def _mode(given: ResponsesNamedChoice) -> Literal["auto", "required"]:
    mode = given.get("mode")
    if mode == REQUIRED:
        return "required"
    if mode is None or mode == AUTO:
        return "auto"
    raise InvalidInput(Member("tool_choice.mode"), f" is {mode!r}, and is {AUTO!r} or {REQUIRED!r}")


def _choice(given: ResponsesNamedChoice | AllowedTool, where: str, searches: bool) -> ChosenFunction:
    kind, name = given["type"], given.get("name")
    if kind == SEARCH and searches:
        return {"type": "tool_search", "name": SEARCH}
    if kind not in (FUNCTION, CUSTOM):
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {quoted(kind)}, and this server runs no tools itself: choose a {FUNCTION!r}",
        )
    if not name:
        raise InvalidInput(Member(where), " has no `name`: name the tool")
    return {"type": "custom" if kind == CUSTOM else "function", "name": name}
