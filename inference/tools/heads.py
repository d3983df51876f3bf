"""How a call begins: recognised whole in its frame, and letter by letter where an answer may be one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from inference.tools.formats import ToolFormat
from inference.tools.types import Tool

WHITE = " \t\n\r"  # JSON's white space
GAP = rf"[{WHITE}]*"
STRING = r'"(?:[^"\\]|\\.)*"'


def head_pattern(fmt: ToolFormat) -> re.Pattern[str]:
    """Return what matches a call up to its arguments, with the name as written in the group `name`.

    Names are clients' texts, and of any length: an expression of them would take seconds, and stay.
    """
    if fmt.name_end is not None:
        opening = "".join(re.escape(marker.text) for marker in fmt.between)
        call_id = f"(?:{re.escape(fmt.call_id.text)}[a-zA-Z0-9]{{9}})?" if fmt.call_id is not None else ""
        return re.compile(
            f"^(?:{opening})?(?P<name>.+?){call_id}{re.escape(fmt.name_end.text)}(?={{)", re.DOTALL
        )
    kind = f'(?:"type"{GAP}:{GAP}"function"{GAP},{GAP})?'
    key = f'"{fmt.arguments_key}"{GAP}:{GAP}'
    return re.compile(f'{{{GAP}{kind}"name"{GAP}:{GAP}(?P<name>{STRING}){GAP},{GAP}{key}(?={{)')


def written_names(fmt: ToolFormat, tools: Sequence[Tool]) -> dict[str, str]:
    """Return the tools' names by the text that stands for them in a call."""
    return {tool.name if fmt.name_end is not None else json_string(tool.name): tool.name for tool in tools}


class Beginning:
    """Tells, as an answer comes in pieces, whether it begins with a call in JSON."""

    def __init__(self, tools: Sequence[Tool], then: str = "") -> None:
        """`then`: what has to follow the name, too."""
        names = [json_string(tool.name) for tool in tools]
        self._calls = tuple(
            before + name + then for name in names for before in ('{"name":', '{"type":"function","name":')
        )
        self._read = ""  # without the white space between JSON's tokens
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> bool | None:
        """Return whether the answer is a call, or None while it can be both."""
        for char in text:
            if char in WHITE and not self._in_string:
                continue
            self._follow(char)
            self._read += char
            if self._read.startswith(self._calls):
                return True
            if not any(call.startswith(self._read) for call in self._calls):
                return False
        return None

    def _follow(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string and char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = not self._in_string


def json_string(text: str) -> str:
    """Return a text as models write it within JSON."""
    return json.dumps(text, ensure_ascii=False)
