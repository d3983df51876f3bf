"""Which member of a body an error is about, as OpenAI's clients read it: `param`.

The HTTP side knows it where it refuses a body. Everybody else names it in the message, in backticks: by
the name that the request has for it, or that TGI's requests have, and a tool by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from handlers.http.errors import Refused
from inference.errors import InvalidInput, ToolRefused
from inference.tools.grammar import shortened

NAMED = re.compile(r"`([^`]{1,200})`")
FIRST = re.compile(r"[^.[]+")  # step of a path


# TGI's names of members: what OpenAI's chats and completions call these; Responses say their own
NAMES = {
    "inputs": ("prompt", "messages"),
    "max_new_tokens": ("max_completion_tokens", "max_tokens"),
    "min_new_tokens": ("min_tokens",),
    "decoder_input_details": ("echo",),
    "top_n_tokens": ("top_logprobs", "logprobs"),
    "best_of": ("n",),
}


def member_of(error: Exception, members: Collection[str], body: object = None) -> str | None:
    """Return the path of the member that an error is about, None if it isn't known to be about one.

    `members` are those that a body may have, and `body` is the one that is refused.
    """
    if isinstance(error, Refused):
        return error.param or None
    if not isinstance(error, InvalidInput | ToolRefused):
        return None
    if isinstance(error, ToolRefused) and error.member in members:
        return error.member
    given = body if isinstance(body, Mapping) else {}
    if "tools" in members and (tool := _tool_of(str(error), given)) is not None:
        return tool
    paths = (_told(path, members, given) for path in NAMED.findall(str(error)))
    return next((path for path in paths if path is not None), None)


def _told(path: str, members: Collection[str], given: Mapping[str, Any]) -> str | None:
    """Return the path by which a body has what a message names, None if it has no such member."""
    first = _first(path)
    if first in members:
        return first if "[]" in path else path
    return next((name for name in NAMES.get(first, ()) if name in members and name in given), None)


def _tool_of(message: str, given: Mapping[str, Any]) -> str | None:
    """Return the path of the tool that a message has by its name, with what the message names below it."""
    for at, tool in enumerate(given["tools"] if isinstance(given.get("tools"), list) else ()):
        if not isinstance(tool, Mapping):
            continue
        function = tool.get("function")
        name = tool.get("name") or (function.get("name") if isinstance(function, Mapping) else None)
        before, found, behind = message.partition(f"`tools[{shortened(name)}]")
        if found and not NAMED.search(before):
            return f"tools[{at}]{behind.partition('`')[0]}"
    return None


def _first(path: str) -> str:
    found = FIRST.match(path)
    return found.group() if found else ""
