"""The calls among the items of a Responses body, by what the model knows the tools as."""

from __future__ import annotations

from collections.abc import Mapping

from handlers.wire.custom_tools import INPUT
from handlers.wire.messages import parsed_arguments
from handlers.wire.offers import CLIENT, SEARCH, Offers, known_as
from handlers.wire.turns import needed
from handlers.wire.types import InputItem
from inference.errors import InvalidInput, Member

CALL, RESULT = "function_call", "function_call_output"
CUSTOM_CALL, CUSTOM_RESULT = "custom_tool_call", "custom_tool_call_output"
SEARCH_CALL, SEARCH_RESULT = "tool_search_call", "tool_search_output"
CALLS, RESULTS = (CALL, CUSTOM_CALL, SEARCH_CALL), (RESULT, CUSTOM_RESULT, SEARCH_RESULT)
SEARCHES = (SEARCH_CALL, SEARCH_RESULT)
HOSTED = frozenset(  # items of tools that OpenAI runs itself, or that aren't served
    (
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
        *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
        *("program", "program_output"),
    )
)


def is_hosted(item: InputItem) -> bool:
    """Return whether an item tells of a tool that OpenAI runs itself."""
    kind = item.get("type")
    return kind in HOSTED or (kind in SEARCHES and item.get("execution") not in (None, CLIENT))


def called(item: InputItem) -> str:
    """Return the name by which the model knows what an item calls; "" where it doesn't say."""
    if item.get("type") == SEARCH_CALL:
        return SEARCH
    name = item.get("name") or ""
    return name and known_as(item.get("namespace"), name)


def call_of(item: InputItem, where: str) -> dict[str, object]:
    """Return a call as chat templates want it; raise InvalidInput for one that lacks something."""
    kind = item.get("type") or ""
    needed(called(item), "name", kind, where)
    id = needed(item.get("call_id"), "call_id", kind, where)
    function = {"name": called(item), "arguments": _arguments(item, where)}
    return {"id": id, "type": "function", "function": function}


def _arguments(item: InputItem, where: str) -> object:
    if item.get("type") != CUSTOM_CALL:
        return parsed_arguments(item.get("arguments"))
    if item.get("input") is None:
        raise InvalidInput(Member(where), f" is of type {CUSTOM_CALL!r} and has no `input`: add it")
    return {INPUT: item.get("input")}


def found(offers: Offers) -> str:
    """Return what the model is told of the tools that a search found: by what names it may call them."""
    names: Mapping[str, object] = offers.by_name
    return f"Found, and to be called from now on: {', '.join(names)}" if names else "Nothing is found."
