"""Grammars of answers over the embedded vocabulary: compiled, asked, and walked through."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.grammar.compiler import GrammarCompiler
from inference.grammar.maker import MakerHere
from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool, ToolUse
from inference.types import CompiledGrammar, Event, Grammar, Matcher, Token
from tests.embedded import tokenizer, vocabulary
from tests.unit.inference_tools.answers import (
    Call,
    Piece,
    plain,
    whole,
)

EOS = 2
# The embedded vocabulary's other special tokens play the parts of what models have
SILENT_AND_ONE = {"<|silent|>": 0}
FORMS = {
    "hermes": with_tokens(FORMATS["hermes"], SILENT_AND_ONE),
    "hermes with special tags": with_tokens(FORMATS["hermes"], {"<tool_call>": 0, "</tool_call>": 1}),
    "llama3": with_tokens(FORMATS["llama3"], {"<|silent|>": 0, "<|python_tag|>": 1}),
    "llama3, no tag": plain("llama3"),
    "mistral": with_tokens(FORMATS["mistral"], {"<|silent|>": 0, "[TOOL_CALLS]": 1}),
    "mistral as text": plain("mistral"),
    "mistral_args": with_tokens(FORMATS["mistral_args"], {"[TOOL_CALLS]": 0, "[ARGS]": 1}),
    "mistral_args as text": plain("mistral_args"),
    "generic": with_tokens(FORMATS["generic"], SILENT_AND_ONE),
    "generic with special thoughts": with_tokens(FORMATS["generic"], {"<|silent|>": 0, "</think>": 1}),
    "granite": with_tokens(FORMATS["granite"], {"<|silent|>": 0, "<|tool_call|>": 1}),
    "phi": with_tokens(FORMATS["phi"], {"<|tool_call|>": 0, "<|/tool_call|>": 1}),
    "nemotron": with_tokens(FORMATS["nemotron"], SILENT_AND_ONE),
    "jamba": plain("jamba"),
    "minimax_m1": plain("minimax_m1"),
    "functionary": plain("functionary"),
    "command": with_tokens(FORMATS["command"], {"<|START_ACTION|>": 0, "<|END_ACTION|>": 1}),
    "deepseek": with_tokens(FORMATS["deepseek"], {"<｜tool▁calls▁begin｜>": 0, "<｜tool▁sep｜>": 1}),
    "deepseek as text": plain("deepseek"),
    "deepseek_v31": with_tokens(
        FORMATS["deepseek_v31"], {"<｜tool▁calls▁begin｜>": 0, "<｜tool▁call▁end｜>": 1}
    ),
    "apertus": with_tokens(FORMATS["apertus"], {"<|tools_prefix|>": 0, "<|tools_suffix|>": 1}),
    "apertus as text": plain("apertus"),
    "kimi": with_tokens(
        FORMATS["kimi"], {"<|tool_calls_section_begin|>": 0, "<|tool_call_argument_begin|>": 1}
    ),
}
ADD = Tool(
    name="add",
    parameters={
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}},
        "required": ["a"],
        "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
)
PAINT = Tool(
    name='pa"int [é😀/\n',
    parameters={"type": "object", "properties": {"as": {"enum": ["red", "}", '"']}}, "required": ["as"]},
)
NOW = Tool(name="now")
TOOLS = (ADD, PAINT, NOW)
CALL, QUOTED, EMPTY = Call("add", '{"a": 1}'), Call(PAINT.name, '{"as": "}"}'), Call("now", "{}")


def use(*tools: Tool, required: bool = False, parallel: bool = True) -> ToolUse:
    return ToolUse(tools=tools or TOOLS, required=required, parallel=parallel)


def compiled(grammar: Grammar) -> CompiledGrammar:
    async def compile_it() -> CompiledGrammar:
        compiler = GrammarCompiler(MakerHere(vocabulary(EOS)), workers=1)
        try:
            return await compiler.compile(grammar)
        finally:
            compiler.close()

    return asyncio.run(compile_it())


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    ids: list[int] = []
    for piece in pieces:
        ids += [piece] if isinstance(piece, int) else tokenizer().encode(piece, add_special_tokens=False)
    return ids


def allowed(matcher: Matcher) -> set[int]:
    mask = np.zeros(vocabulary(EOS).words, dtype=np.uint32)
    matcher.fill_mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def accepts(grammar: CompiledGrammar, pieces: Sequence[Piece]) -> bool:
    """Return whether an answer may end after these."""
    matcher = grammar.start()
    return all(matcher.accept(token_id) for token_id in ids_of(pieces)) and EOS in allowed(matcher)


def begins(grammar: CompiledGrammar, pieces: Sequence[Piece]) -> bool:
    matcher = grammar.start()
    return all(matcher.accept(token_id) for token_id in ids_of(pieces))


def parsed(fmt: ToolFormat, tool_use: ToolUse, ids: Sequence[int]) -> tuple[Any, ...]:
    """Parse the events that the client makes of tokens."""
    stream = tokenizer().stream([5])
    made = []
    for at, token_id in enumerate(ids, 1):
        is_special = token_id in tokenizer().special_ids
        text = "" if is_special else stream.push(token_id)
        made.append(Event(at, Token(token_id, text, 0.0, is_special), (), text))
    return whole(fmt, tool_use, made)


def walk(matcher: Matcher, seed: int, tokens: int) -> list[int] | None:
    """Return random tokens that the grammar allows, up to its end; None where `tokens` don't suffice."""
    draw = random.Random(seed)
    ids: list[int] = []
    while not matcher.finished:
        choices = allowed(matcher)
        if EOS in choices and draw.random() < 0.3:
            return ids
        choices -= {EOS}
        ids.append(draw.choice(sorted(choices)))
        assert matcher.accept(ids[-1])
        if len(ids) > tokens:
            return None
    return ids


BARE_NAMES = {
    "functionary": "<function=(.*?)>(?={)",
    "deepseek": "<｜tool▁sep｜>(.*?)\n```json\n(?={)",
    "deepseek_v31": "<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(?={)",
    "apertus": r'[\[ ]\{"((?:[^\n]|\n)*?)": (?=\{)',
    "kimi": r"<\|tool_call_begin\|>functions\.(.*?):\d{1,3}<\|tool_call_argument_begin\|>(?={)",
}


def calls_in(fmt: ToolFormat, text: str) -> list[tuple[str, Any]]:
    """Find calls with a JSON parser and nothing else; `text` has special tokens spelt out."""
    decoder = json.JSONDecoder()
    if fmt.name in BARE_NAMES:
        begins = [*re.finditer(BARE_NAMES[fmt.name], text, re.DOTALL)]
        return [(begun[1], decoder.raw_decode(text, begun.end())[0]) for begun in begins]
    if fmt.name_end is not None:
        found = re.findall(r"\[TOOL_CALLS\](.*?)(?:\[CALL_ID\]\w{9})?\[ARGS\](?=\{)", text, re.DOTALL)
        places = [match.end() for match in re.finditer(r"\[ARGS\](?=\{)", text)]
        return [(name, decoder.raw_decode(text, at)[0]) for name, at in zip(found, places, strict=True)]
    calls, at = [], 0
    while (at := text.find("{", at)) >= 0:
        call, at = decoder.raw_decode(text, at)
        name = call["tool_name"] if fmt.name == "command" else call["name"]
        calls.append((name, call[fmt.arguments_key]))
    return calls
