"""The vocabulary of tools: what may be called, and the parts that an answer consists of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.errors import Member

NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}
PLACE = re.compile(r"\[\d+\]")  # of an item, in a path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; running it is the client's part."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_ARGUMENTS)
    strict: bool = False  # what a grammar can't express of the parameters is refused, not left out
    told: Mapping[str, object] | None = None  # what the prompt says of the parameters, if not they
    takes_text: bool = False  # its one argument is a text, which is what the client knows of a call
    at: str = "tools[0].function"  # where the request has it
    schema: str = "parameters"  # the member of it that is the schema

    @property
    def shown(self) -> Mapping[str, object]:
        """Return the schema that the model is shown."""
        return self.parameters if self.told is None else self.told

    @property
    def member(self) -> Member:
        """Return where the request has the schema; messages know a tool by its name."""
        above, _, place = self.at.rpartition("[")
        shown = f"{anywhere(above)}[{shortened(self.name)}{place[place.index(']') :]}.{self.schema}"
        return Member(f"{self.at}.{self.schema}", f"`{shown}`")


def anywhere(path: str) -> str:
    """Return a path with `[]` in the place of each item's number."""
    return PLACE.sub("[]", path)


def shortened(value: object) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Which tools one request offers, and how many calls its answer may consist of."""

    tools: tuple[Tool, ...]  # those that may be called, and that the prompt tells of
    required: bool  # the answer is calls and nothing else
    parallel: bool  # more than one call in an answer
    formed: bool = False  # text follows a form: an answer that doesn't begin with a call has none
    thinking: bool = False  # the prompt leaves a thought open, with which the answer goes on


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of what the model says beside its calls; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtPart:
    """A piece of what the model thinks before it speaks or calls; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its name is whole."""

    index: int  # 0-based, among the calls of the answer
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the compact JSON text of a call's arguments, its values spelt as generated; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete; a call that was cut off has no end."""

    index: int


Part = TextPart | ThoughtPart | CallStart | CallArguments | CallEnd
