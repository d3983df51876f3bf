"""How the arguments of a call are written: a notation has their rules, reads them, and writes them.

JSON is one, and tags of a format and literals are others. A further one is a file like `tagged.py`, and a
line here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.tools.formats import ToolFormat
from inference.tools.literals import LiteralArguments
from inference.tools.objects import JsonObject
from inference.tools.tagged import TaggedArguments
from inference.tools.types import Tool


class Reader(Protocol):
    """Reads the arguments of one call in a text that comes in pieces."""

    @property
    def complete(self) -> bool:
        """Return whether the arguments have ended."""

    def read(self, text: str) -> tuple[str, str]:
        """Return what a piece adds to their compact JSON text, and what follows them."""


class Notation(Protocol):
    """A way to write arguments."""

    @property
    def begins(self) -> str:
        """Return the regular expression of what begins them, or ends a call without any."""

    def rules(self, tools: Sequence[Tool], schemas: Sequence[str]) -> Iterator[str]:
        """Yield the rules `args_0`, `args_1` ... of tools with these `schemas`, for grammars.

        A comment before a schema says which tool's it is, by its place here, should it not compile.
        """

    def lost(self, tool: Tool, schema: str) -> frozenset[str]:
        """Return the keywords of a tool's schema that this notation can't be held to."""

    def reader(self, tool: Tool) -> Reader:
        """Return what reads the arguments of a call."""

    def written(self, arguments: object) -> str:
        """Return arguments as a model writes them: an object, or a text in place of one."""


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """Arguments as one JSON object."""

    begins: str = r"\{"

    def rules(self, tools: Sequence[Tool], schemas: Sequence[str]) -> Iterator[str]:
        """Yield a rule for each."""
        for at, schema in enumerate(schemas):
            yield f"// {at}"
            yield f"args_{at}: %json {schema}"

    def lost(self, tool: Tool, schema: str) -> frozenset[str]:
        """Return nothing: what can't be expressed was left out before."""
        return frozenset()

    def reader(self, tool: Tool) -> JsonObject:
        """Return what reads an object."""
        return JsonObject()

    def written(self, arguments: object) -> str:
        """Return JSON text; a string is such a text already."""
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def notation_of(fmt: ToolFormat) -> Notation:
    """Return how a format has arguments."""
    if fmt.literals is not None:
        return LiteralArguments(fmt.literals)
    return JsonArguments() if fmt.tags is None else TaggedArguments(fmt.tags, fmt.closing)
