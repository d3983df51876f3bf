"""The vocabulary of tools: what may be called, and the parts that an answer consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; running it is the client's part."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_ARGUMENTS)
    strict: bool = False  # what a grammar can't express of the parameters is refused, not left out
    told: Mapping[str, object] | None = None  # what the prompt says of the parameters, if not they
    takes_text: bool = False  # its one argument is a text, which is what the client knows of a call
    at: str = ""  # where the request has its schema, `[]` for each place; "" where its `ToolUse` says

    @property
    def shown(self) -> Mapping[str, object]:
        """Return the schema that the model is shown."""
        return self.parameters if self.told is None else self.told


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Which tools one request offers, and how many calls its answer may consist of."""

    tools: tuple[Tool, ...]  # those that may be called, and that the prompt tells of
    required: bool  # the answer is calls and nothing else
    parallel: bool  # more than one call in an answer
    formed: bool = False  # text follows a form: an answer that doesn't begin with a call has none
    thinking: bool = False  # the prompt leaves a thought open, with which the answer goes on
    schemas_at: str = "function.parameters"  # where a tool of the request has its schema, for messages


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
