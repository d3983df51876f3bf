"""Which member of a body an error is about, as OpenAI's clients read it: `param`.

The HTTP side knows it where it refuses a body. Everybody else names it in the message, in backticks, by
the name that the request has for it: TGI's words may name what OpenAI's requests call otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from handlers.http.errors import Refused
from inference.errors import InvalidInput, ToolRefused

NAMED = re.compile(r"`([^`]{1,200})`")
FIRST = re.compile(r"[^.[]+")  # step of a path


def member_of(error: Exception, members: Collection[str]) -> str | None:
    """Return the path of the member that an error is about, None if it isn't known to be about one.

    `members` are those that a body may have.
    """
    if isinstance(error, Refused):
        return error.param or None
    if not isinstance(error, InvalidInput | ToolRefused):
        return None
    return next((path for path in NAMED.findall(str(error)) if _first(path) in members), None)


def _first(path: str) -> str:
    found = FIRST.match(path)
    return found.group() if found else ""
