"""How a call begins: recognised whole in its frame, and letter by letter where an answer may be one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from inference.tools.arguments import notation_of
from inference.tools.formats import Marker, ToolFormat, text_of
from inference.tools.objects import WHITE
from inference.tools.types import Tool

GAP = rf"[{WHITE}]*"
STRING = r'"(?:[^"\\]|\\.)*"'


def head_pattern(fmt: ToolFormat) -> re.Pattern[str]:
    """Return what matches a call up to its arguments, with the name as written in the group `name`.

    Names are clients' texts, and of any length: an expression of them would take seconds, and stay.
    """
    begins = "" if fmt.clear_names else f"(?={notation_of(fmt).begins})"
    if fmt.name_end is not None:
        starts = (fmt.led_opening, fmt.opening, fmt.opening[1:], fmt.bare_opening, fmt.closing + fmt.between)
        frames = "|".join(map(in_frame, sorted(starts, key=lambda markers: -len(text_of(markers)))))
        frames = f"{GAP}(?:{frames})" if fmt.bare_opening else frames
        needed = "" if fmt.needs_id else "?"
        call_id = f"(?:{re.escape(fmt.call_id.text)}{fmt.id_form}){needed}" if fmt.call_id is not None else ""
        end = re.escape(text_of(fmt.name_end))
        return re.compile(f"^(?:{frames})(?P<name>.+?){call_id}{end}{begins}", re.DOTALL)
    kind = f'(?:"type"{GAP}:{GAP}"function"{GAP},{GAP})?'
    call_id = f'"{fmt.id_key}"{GAP}:{GAP}"{fmt.id_form}"{GAP},{GAP}' if fmt.id_key else ""
    key = f'"{fmt.arguments_key}"{GAP}:{GAP}'
    return re.compile(
        f'{{{GAP}{kind}{call_id}"{fmt.name_key}"{GAP}:{GAP}(?P<name>{STRING}){GAP},{GAP}{key}{begins}'
    )


def in_frame(markers: Sequence[Marker]) -> str:
    """Return the regular expression of markers."""
    return "".join(re.escape(marker.text) + ("?" if marker.optional else "") for marker in markers)


def written_names(fmt: ToolFormat, tools: Sequence[Tool]) -> dict[str, str]:
    """Return the tools' names by the text that stands for them in a call."""
    return {tool.name if fmt.name_end is not None else json_string(tool.name): tool.name for tool in tools}


class BareBeginning:
    """Tells, as an answer comes in pieces, whether it begins with a call whose name is bare: `[f(`."""

    def __init__(self, fmt: ToolFormat, tools: Sequence[Tool]) -> None:
        before, end = text_of(fmt.bare_opening), text_of(fmt.name_end or ())
        self._calls = tuple(before + tool.name + end for tool in tools)
        self._read = ""

    def push(self, text: str) -> bool | None:
        """Return whether the answer is a call, or None while it can be both."""
        self._read = (self._read + text).lstrip(WHITE)
        if self._read.startswith(self._calls):
            return True
        return None if any(call.startswith(self._read) for call in self._calls) else False


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
