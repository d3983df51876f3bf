"""Answers as models write them, and the events that they come as."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.known_formats import FORMATS
from inference.tools.parser import CallParser, joined
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, Tool, ToolUse
from inference.types import Event, Token
from tests.unit.inference_tools.native import JSON_FORMATS

SILENT = 0  # a special token that means nothing here
SPECIAL = {
    "<|im_start|>": SILENT,
    "<|python_tag|>": 1,
    "[TOOL_CALLS]": 2,
    "[ARGS]": 3,
    "[CALL_ID]": 4,
}
TAGS = {"<tool_call>": 5, "</tool_call>": 6}  # special in some models of the format, not in all
THOUGHTS = {"<think>": 7, "</think>": 8}  # as are these
FRAME_MARKS = """
    <|tool_call|> <|/tool_call|> <|START_ACTION|> <|END_ACTION|>
    <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>
    <|tool_calls_section_begin|> <|tool_calls_section_end|>
    <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>
    <arg_key> </arg_key> <arg_value> </arg_value>
    <|tools_prefix|> <|tools_suffix|> <|function_call|>
    <tool_calls:opensource> </tool_calls:opensource> <tool_call:opensource> </tool_call:opensource>
    <tool_sep:opensource> <arg_value:opensource> </arg_value:opensource>
"""  # of the models of 2025 and 2026, which have them as special tokens, or as text
FRAMES = {text: at for at, text in enumerate(FRAME_MARKS.split(), 9)}
TEXT_OF = {token_id: text for text, token_id in (SPECIAL | TAGS | THOUGHTS | FRAMES).items()}

BESIDE_STRINGS = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*+"?)|[ \t\n\r]+', re.DOTALL)
Piece = str | int  # visible text, or the id of a special token


@dataclass(frozen=True)
class Call:
    """A call as the tests want it back."""

    name: str
    arguments: str  # as it was written

    @property
    def told(self) -> Call:
        """Return the call with its arguments as they come back, whole or cut: without white space around."""
        return Call(self.name, BESIDE_STRINGS.sub(lambda found: found["string"] or "", self.arguments))


def use(*names: str, required: bool = False, parallel: bool = True) -> ToolUse:
    tools = tuple(Tool(name=name) for name in names or ("get_weather", "add"))
    return ToolUse(tools=tools, required=required, parallel=parallel)


def special(name: str) -> ToolFormat:
    """Return a format whose markers are special tokens, where models have them so."""
    return with_tokens(FORMATS[name], SPECIAL)


def plain(name: str) -> ToolFormat:
    """Return a format whose markers are all text."""
    return with_tokens(FORMATS[name], {})


FORMS = [
    special("hermes"),
    with_tokens(FORMATS["hermes"], TAGS),
    special("llama3"),
    plain("llama3"),
    special("mistral"),
    plain("mistral"),
    special("mistral_args"),
    plain("mistral_args"),
    special("generic"),
    *(with_tokens(FORMATS[name], FRAMES) for name in JSON_FORMATS),
    *(plain(name) for name in ("granite", "command", "deepseek", "kimi")),
]
FORM_NAMES = [
    f"{fmt.name}-{'special' if any(marker.id is not None for marker in fmt.markers) else 'plain'}"
    for fmt in FORMS
]


def events(pieces: Iterable[Piece]) -> list[Event]:
    made = []
    for at, piece in enumerate(pieces, 1):
        if isinstance(piece, int):
            made.append(Event(at, Token(piece, TEXT_OF[piece], 0.0, True), (), ""))
        else:
            made.append(Event(at, Token(99, piece, 0.0, False), (), piece))
    return made


def parse(fmt: ToolFormat, tool_use: ToolUse, given: Iterable[Event]) -> list[tuple[Part, ...]]:
    """Return what each event completes, and at last what the end does."""
    parser = CallParser(fmt, tool_use)
    return [*(parser.push(event) for event in given), parser.finish()]


def whole(fmt: ToolFormat, tool_use: ToolUse, given: Iterable[Event]) -> tuple[Part, ...]:
    return joined(part for parts in parse(fmt, tool_use, given) for part in parts)


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def calls_of(parts: Iterable[Part]) -> list[Call]:
    """Return the calls whose start, arguments and end came in order."""
    names: list[str] = []
    arguments: list[str] = []
    ended = 0
    for part in parts:
        if isinstance(part, CallStart):
            assert part.index == len(names) == ended, "a call starts where the last one has ended"
            names.append(part.name)
            arguments.append("")
        elif isinstance(part, CallArguments):
            assert part.index == len(names) - 1 == ended
            assert part.text
            arguments[-1] += part.text
        elif isinstance(part, CallEnd):
            assert part.index == len(names) - 1
            ended += 1
    return [Call(*call) for call in zip(names, arguments, strict=True)][:ended]


def written(fmt: ToolFormat, calls: Sequence[Call], text: str = "") -> list[Piece]:
    """Return an answer of text and calls as this format writes it; an oracle of its own."""
    key = fmt.arguments_key
    objects = [f'{{"name": {json.dumps(c.name, ensure_ascii=False)}, "{key}": {c.arguments}}}' for c in calls]
    if not calls:
        return [text]
    if fmt.name in JSON_FORMATS:
        made = JSON_FORMATS[fmt.name]([(call.name, call.arguments) for call in calls])
        return [text, *split(fmt, made)]
    if fmt.name == "hermes":
        tagged: list[Piece] = [text]
        for at, made in enumerate(objects):
            tagged += [
                *(["\n"] if at else []),
                *mark("<tool_call>", fmt),
                f"\n{made}\n",
                *mark("</tool_call>", fmt),
            ]
        return tagged
    if fmt.name == "mistral":
        return [text, *mark("[TOOL_CALLS]", fmt), f"[{', '.join(objects)}]"]
    if fmt.name == "mistral_args":
        pieces: list[Piece] = [text]
        for call in calls:
            pieces += [*mark("[TOOL_CALLS]", fmt), call.name, *mark("[ARGS]", fmt), call.arguments]
        return pieces
    if fmt.name == "llama3" and fmt.opening:
        return [text, *mark("<|python_tag|>", fmt), "; ".join(objects)]
    return [text + ("; " if fmt.name == "llama3" else "\n").join(objects)]


def split(fmt: ToolFormat, text: str) -> list[Piece]:
    """Return a text with the special tokens of a format in place of theirs."""
    ids = {marker.text: marker.id for marker in fmt.markers if marker.id is not None}
    found = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    return [ids.get(piece, piece) for piece in re.split(f"({found})", text) if piece] if ids else [text]


def mark(text: str, fmt: ToolFormat) -> list[Piece]:
    ids = {marker.text: marker.id for marker in fmt.markers}
    token_id = ids[text]
    return [text if token_id is None else token_id]


def pieces_of(pieces: Sequence[Piece], cuts: Sequence[int]) -> list[Piece]:
    """Return an answer with its texts cut into pieces of the given sizes, over and over."""
    cut: list[Piece] = []
    turn = 0
    for piece in pieces:
        if isinstance(piece, int):
            cut.append(piece)
            continue
        while piece:
            size = max(1, cuts[turn % len(cuts)])
            cut.append(piece[:size])
            piece = piece[size:]
            turn += 1
    return cut


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
