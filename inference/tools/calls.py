"""The rules of single calls: what stands around the arguments that a tool's parameters allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inference.tools.formats import Marker, ToolFormat
from inference.tools.heads import json_string
from inference.tools.lark import in_regex, literal, symbols
from inference.tools.types import Tool

GAP = " ?"  # within a native format, written as the model was taught it
BLANK = r"[ \t\n\r]"
ROOM = BLANK + "{0,20}"  # in what has to be a call: white space without end would be no answer


def call_rules(fmt: ToolFormat, tools: Sequence[Tool]) -> Iterator[str]:
    """Yield the rules of one call, without those of its arguments."""
    yield "call: " + " | ".join(f"call_{at}" for at in range(len(tools)))
    if fmt.name_end is not None:
        yield from named_rules(fmt, fmt.name_end, tools)
        return
    gap = ROOM if fmt.bare else GAP
    id_text = f'(,{gap}"id"{gap}:{gap}"{fmt.id_form}"{gap})?' if fmt.trailing_id else ""
    id_first = f'"{fmt.id_key}"{gap}:{gap}"{fmt.id_form}"{gap},{gap}' if fmt.id_key else ""
    yield f'KEY: /{gap},{gap}"{fmt.arguments_key}"{gap}:{gap}/'
    yield f"END: /{gap}{id_text}\\}}/"
    for at, tool in enumerate(tools):
        name = in_regex(json_string(tool.name))
        begin = head(name, gap) if fmt.bare else f'\\{{{gap}{id_first}"{fmt.name_key}"{gap}:{gap}{name}'
        yield f"HEAD_{at}: /{begin}/"
        yield f"call_{at}: HEAD_{at} KEY args_{at} END"


def named_rules(fmt: ToolFormat, name_end: Sequence[Marker], tools: Sequence[Tool]) -> Iterator[str]:
    """Yield the rules of calls that are a bare name and arguments."""
    call_id = ""
    if fmt.call_id is not None:
        call_id = f"({symbols((fmt.call_id,))} ID){'' if fmt.needs_id else '?'} "
        yield f"ID: /{fmt.id_form}/"
    for at, tool in enumerate(tools):
        yield f"call_{at}: {literal(tool.name)} {call_id}{symbols(name_end)} args_{at}"


def head(name: str, gap: str) -> str:
    """Return the regular expression of a bare call up to its name; models like to say its type first."""
    kind = f'("type"{gap}:{gap}"function"{gap},{gap})?'
    return f'\\{{{gap}{kind}"name"{gap}:{gap}({name})'
