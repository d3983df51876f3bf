"""A chat's text where an answer is one text alone: its words, or its calls as TGI's grammar has them.

Thoughts that are told apart have no place in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from handlers.wire.calls import Parser
from handlers.wire.outputs import Output
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart


def prediction(output: Output, parser: Parser) -> str:
    """Return what was said or, if tools are called, the calls alone: `{"function":{"_name":"f","a":1}}`.

    Several are an array of such objects. A call that was cut is given as far as it came.
    """
    words: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    ended = 0
    for part in _parts(output, parser):
        if isinstance(part, TextPart):
            words.append(part.text)
        elif isinstance(part, CallStart):
            names.append(part.name)
            arguments.append("")
        elif isinstance(part, CallArguments):
            arguments[-1] += part.text
        elif isinstance(part, CallEnd):
            arguments[-1] += "}"
            ended += 1
    if not names:
        return "".join(words)
    calls = ",".join(map(_call, names, arguments))
    if len(names) == 1:
        return calls
    return f"[{calls}]" if ended == len(names) else f"[{calls}"


def _parts(output: Output, parser: Parser) -> Iterator[Part]:
    for event in output:
        yield from parser.push(event)
    yield from parser.finish()


def _call(name: str, arguments: str) -> str:
    """Return a call with the arguments' members behind its name; what closes it stands behind these."""
    members = arguments[1:]
    comma = "" if members.startswith("}") or not members else ","
    return f'{{"function":{{"_name":{orjson.dumps(name).decode()}{comma}{members}'
