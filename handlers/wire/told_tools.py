"""The tools of a Responses body as its answer echoes them: those that the client runs."""

from __future__ import annotations

from collections.abc import Iterable

from handlers.wire.custom_tools import told_format
from handlers.wire.offers import CUSTOM, NAMESPACE, SEARCH, is_hosted
from handlers.wire.types import GroupedTool, ResponseGroupedTool, ResponsesTool, ResponseTool


def told_tools(tools: Iterable[ResponsesTool]) -> list[ResponseTool]:
    """Return tools that were understood, less those that OpenAI runs itself."""
    return [_told(tool) for tool in tools if not is_hosted(tool)]


def _told(tool: ResponsesTool) -> ResponseTool:
    if tool["type"] == NAMESPACE:
        inner = [_single(each) for each in tool.get("tools") or () if not is_hosted(each)]
        return {
            "type": "namespace",
            "name": tool.get("name") or "",
            "description": tool.get("description") or "",
            "tools": inner,
        }
    if tool["type"] == SEARCH:
        return {
            "type": "tool_search",
            "execution": "client",
            "description": tool.get("description"),
            "parameters": tool.get("parameters"),
        }
    return _single(tool)


def _single(tool: ResponsesTool | GroupedTool) -> ResponseGroupedTool:
    if tool["type"] == CUSTOM:
        return {
            "type": "custom",
            "name": tool.get("name") or "",
            "description": tool.get("description"),
            "format": told_format(tool.get("format"), "format"),
        }
    return {
        "type": "function",
        "name": tool.get("name") or "",
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict") is True,
    }
