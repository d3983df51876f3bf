"""Arguments by name with literals for values, as in calls of Python, and as Gemma writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inference.tools.formats import Literals
from inference.tools.literal_reader import LiteralReader
from inference.tools.literal_rules import LiteralRules
from inference.tools.literal_texts import arguments_of
from inference.tools.shapes import lost_words
from inference.tools.types import Tool


@dataclass(frozen=True, slots=True)
class LiteralArguments:
    """Arguments up to what closes a call, which is read by who reads its frame."""

    literals: Literals
    begins: str = ""  # anything, behind what ends a name

    def rules(self, tools: Sequence[Tool], schemas: Sequence[str]) -> Iterator[str]:
        """Yield the rules of all arguments."""
        rules = LiteralRules(self.literals)
        for at, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
            yield from rules.of(at, tool, json.loads(schema))

    def lost(self, tool: Tool, schema: str) -> frozenset[str]:
        """Return the keywords that speak of an object as a whole."""
        return lost_words(json.loads(schema))

    def reader(self, tool: Tool) -> LiteralReader:
        """Return what reads arguments and makes JSON of them."""
        return LiteralReader(self.literals)

    def written(self, arguments: object) -> str:
        """Return arguments as literals; a text that is no object stands there as it is."""
        if isinstance(arguments, Mapping):
            return arguments_of(arguments, self.literals)
        return "" if arguments is None else str(arguments)
