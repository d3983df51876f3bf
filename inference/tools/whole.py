"""Whether an answer whose text has a form begins with a call: both are JSON, so the call must be whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jsonschema_rs

from inference.errors import GrammarRefused, ToolRefused
from inference.grammar.fault import GrammarFault
from inference.grammar.schema import LIMITS, embedded_json
from inference.tools.formats import ToolFormat
from inference.tools.grammar import arguments_schema
from inference.tools.heads import Beginning
from inference.tools.objects import JsonObject
from inference.tools.types import Tool

MOST_CHARACTERS = 16_384  # of a schema, which is read where others wait: 200 expressions took 50 ms


class WholeCall:
    """Tells, as an answer comes in pieces, whether its first object is a call of a tool.

    A form may allow an object that begins as a call does, or is one but for its arguments. It is held back
    until it is whole, and is text unless it has a call's members and no others, and arguments that the
    tool's schema allows.
    """

    def __init__(self, fmt: ToolFormat, tools: Sequence[Tool]) -> None:
        self._key = fmt.arguments_key
        self._tools = {tool.name: tool for tool in tools}
        self._beginning: Beginning | None = Beginning(tools, then=f',"{self._key}":{{')
        self._object = JsonObject()
        self._read = ""

    def push(self, text: str) -> bool | None:
        """Return whether the answer is a call, or None while it can be both."""
        self._read += self._object.read(text)[0] if not self._object.complete else ""
        if self._beginning is not None:
            begins = self._beginning.push(text)
            if begins is not True:
                return begins
            self._beginning = None
        return self._is_call() if self._object.complete else None

    def _is_call(self) -> bool:
        try:
            told = json.loads(self._read, object_pairs_hook=_once_each)
        except (ValueError, RecursionError):
            return False
        if told.keys() - {"type"} != {"name", self._key}:
            return False
        return _fits(told[self._key], self._tools[told["name"]])


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, whose names may not come twice: raise ValueError if they do."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _fits(arguments: Mapping[str, Any], tool: Tool) -> bool:
    """Return whether a tool's schema allows arguments, as far as can be seen.

    By what was compiled of it: in that there are no references but those that were followed, and a validator
    would fetch others.
    """
    try:
        schema, _ = arguments_schema(tool, LIMITS)
        if len(str(schema)) > MOST_CHARACTERS:
            return True
        compiled = json.loads(embedded_json(schema, LIMITS))
        return jsonschema_rs.validator_for(compiled, retriever=_refuse).is_valid(arguments)
    except (GrammarFault, GrammarRefused, ToolRefused, ValueError, jsonschema_rs.ReferencingError):
        return True  # what refuses the schema has let it pass


def _refuse(address: str) -> NoReturn:
    raise ValueError(f"nothing is fetched: {address:.80}")
