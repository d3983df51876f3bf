"""Calls whose arguments are literals, written by hand, and read by Python's own parser: an oracle."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Made = tuple[str, Mapping[str, Any]]
FRAMES = {  # of each: what stands before and behind all calls, and between them
    "pythonic": ("[", "]", ", "),
    "lfm2": ("<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "olmo": ("<function_calls>", "</function_calls>", "\n"),
}
QUOTES = {"gemma": ("<|tool_call>", '<|"|>', "<tool_call|>")}
QUOTES["gemma_escape"] = ("<start_function_call>", "<escape>", "<end_function_call>")
LITERAL_FORMATS = (*FRAMES, *QUOTES)
CONTROLS = {code: f"\\x{code:02x}" for code in range(32)} | {0x7F: "\\x7f"}  # Python reads them escaped only


def literal_calls(name: str, calls: Sequence[Made], text: Callable[[str], str] = json.dumps) -> str:
    """Return calls as a format has them; `text` is how Python's texts are written."""
    if name in FRAMES:
        before, behind, between = FRAMES[name]
        json_words = name == "olmo"
        return before + between.join(python_call(call, text, json_words) for call in calls) + behind
    before, quote, behind = QUOTES[name]
    return "".join(f"{before}call:{called}{{{members(given, quote)}}}{behind}" for called, given in calls)


def python_call(call: Made, text: Callable[[str], str], json_words: bool) -> str:
    name, given = call
    arguments = (f"{bare(key)}={python(value, text, json_words)}" for key, value in given.items())
    return f"{name}({', '.join(arguments)})"


def python(value: Any, text: Callable[[str], str], json_words: bool) -> str:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool | None):
        return json.dumps(value) if json_words else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(python(each, text, json_words) for each in value)}]"
    if isinstance(value, dict):
        pairs = (f"{text(key)}: {python(each, text, json_words)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value)


def bare(key: str) -> str:
    return key if re.fullmatch(r"[^\W\d][\w.$-]*", key) else json.dumps(key, ensure_ascii=False)


def members(given: Mapping[str, Any], quote: str) -> str:
    return ",".join(f"{bare(key)}:{gemma(value, quote)}" for key, value in given.items())


def gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(gemma(each, quote) for each in value)}]"
    return f"{{{members(value, quote)}}}" if isinstance(value, dict) else json.dumps(value)


def calls_in_literals(name: str, text: str) -> list[tuple[str, Any]]:
    """Find the calls of an answer that is nothing else."""
    return calls_in_python(name, text) if name in FRAMES else calls_in_gemma(name, text)


def calls_in_python(name: str, text: str) -> list[tuple[str, Any]]:
    """Let Python parse calls; one below the other they are made a list."""
    before, behind, _ = FRAMES[name]
    body = text.strip("\n ").removeprefix(before).removesuffix(behind)
    if name == "olmo":
        body = ", ".join(re.split(r"(?<=\))\n(?=\w+\()", body.strip("\n")))
    source = f"[{body.translate(CONTROLS)}]"
    parsed = ast.parse(source, mode="eval").body
    assert isinstance(parsed, ast.List)
    return [
        (ast.unparse(call.func), arguments_of(call)) for call in parsed.elts if isinstance(call, ast.Call)
    ]


class JsonWords(ast.NodeTransformer):
    """Makes constants of JSON's words, which are names to Python."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(json.loads(node.id)), node)


def arguments_of(call: ast.Call) -> dict[str | None, Any]:
    assert not call.args
    return {each.arg: ast.literal_eval(JsonWords().visit(each.value)) for each in call.keywords}


def calls_in_gemma(name: str, text: str) -> list[tuple[str, Any]]:
    """Make JSON of calls, piece by piece, and let its parser read it."""
    before, quote, behind = QUOTES[name]
    found = []
    pattern = f"{re.escape(before)}call:(.*?)({{.*?}}){re.escape(behind)}"
    for made in re.finditer(pattern, text, re.DOTALL):
        parts = made[2].split(quote)
        for at, part in enumerate(parts):
            parts[at] = (
                json.dumps(part)[1:-1] if at % 2 else re.sub(r"([{,])([A-Za-z_][\w.$-]*):", r'\1"\2":', part)
            )
        found.append((made[1], json.loads('"'.join(parts))))
    return found
