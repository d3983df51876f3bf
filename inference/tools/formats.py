"""How models write calls: a table of formats, and which of them a model's chat template shows.

hermes        <tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>, one below the other
llama3        {"name": "f", "parameters": {}}; {...}, after the token <|python_tag|> or without it
mistral       [TOOL_CALLS][{"name": "f", "arguments": {}}, {...}]
mistral_args  [TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}
generic       {"name": "f", "parameters": {}}, one below the other: what TGI's prompt asks for
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

CALLS_LIMIT = 64  # calls in one answer


@dataclass(frozen=True, slots=True)
class Marker:
    """A text of the frame around calls."""

    text: str
    id: int | None = None  # of the special token that it is; None: it is generated as text
    spaced: bool = False  # a space may come before it


# Thoughts before an answer stand between these, or before the second where the prompt has the first
THOUGHT, THOUGHT_END = Marker("<think>"), Marker("</think>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A way to write calls: `opening`, calls with `closing` behind and `between` between them, `ending`.

    A call is a JSON object, `{"name": ..., <arguments_key>: ...}`, or, where there is `name_end`, its
    bare name, that marker and its arguments.
    """

    name: str
    opening: tuple[Marker, ...] = ()  # empty: calls begin with the answer
    closing: tuple[Marker, ...] = ()  # of each call
    between: tuple[Marker, ...]
    ending: tuple[Marker, ...] = ()
    arguments_key: str = "arguments"
    name_end: Marker | None = None
    call_id: Marker | None = None  # may stand between a bare name and its end, with an id behind it
    trailing_id: bool = False  # an id may follow the arguments: `, "id": "..."`
    bare: bool = False  # a call may begin the answer, or follow a thought, without `opening` too
    native: bool = True  # the template tells the model of it, so nobody else has to
    silent_ids: tuple[int, ...] = ()  # special tokens that are no part of calls, ascending
    thought_end: Marker = THOUGHT_END

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Return every marker of the format."""
        names = tuple(marker for marker in (self.name_end, self.call_id) if marker is not None)
        return self.opening + self.closing + self.between + self.ending + names


TOOL_CALLS = Marker("[TOOL_CALLS]")
OPEN, CLOSE, LINE = Marker("<tool_call>"), Marker("</tool_call>"), Marker("\n")

HERMES = ToolFormat(name="hermes", opening=(OPEN, LINE), closing=(LINE, CLOSE), between=(LINE, OPEN, LINE))
LLAMA3 = ToolFormat(
    name="llama3",
    opening=(Marker("<|python_tag|>"),),
    between=(Marker("; "),),
    arguments_key="parameters",
    bare=True,
)
MISTRAL = ToolFormat(
    name="mistral",
    opening=(TOOL_CALLS, Marker("[", spaced=True)),
    between=(Marker(", "),),
    ending=(Marker("]"),),
    trailing_id=True,
)
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    opening=(TOOL_CALLS,),
    between=(TOOL_CALLS,),
    name_end=Marker("[ARGS]"),
    call_id=Marker("[CALL_ID]"),
)
GENERIC = ToolFormat(name="generic", between=(LINE,), arguments_key="parameters", bare=True, native=False)
FORMATS = {fmt.name: fmt for fmt in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, GENERIC)}

# What reveals each native format: in a call as the template writes it, or in what it tells of calls
SIGNS = {
    "hermes": re.compile(r'<tool_call>\s*\{\s*"(name|arguments)"\s*:'),
    "mistral": re.compile(r'\[TOOL_CALLS\]\s*\[\s*\{\s*"(id|name|arguments)"\s*:'),
    "mistral_args": re.compile(r"\[TOOL_CALLS\][^\[\]{}]+(\[CALL_ID\]\w+)?\[ARGS\]\s*\{"),
    "llama3": re.compile(r'(\n|<\|python_tag\|>)\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:'),
}


def detect(sample: str) -> ToolFormat:
    """Return the format in which a template's text has its calls; the generic one if it is none of ours."""
    name = next((name for name, sign in SIGNS.items() if sign.search(sample)), GENERIC.name)
    return FORMATS[name]


def with_tokens(fmt: ToolFormat, special: Mapping[str, int]) -> ToolFormat:
    """Return a format for a tokenizer's special tokens, given by their texts.

    A marker that is no special token is generated as text. A `<|python_tag|>` that isn't there drops
    out, since llama3's calls need no opening.
    """

    def known(markers: Iterable[Marker]) -> tuple[Marker, ...]:
        return tuple(replace(marker, id=special.get(marker.text)) for marker in markers)

    def one(marker: Marker | None) -> Marker | None:
        return None if marker is None else replace(marker, id=special.get(marker.text))

    opening = known(fmt.opening)
    if fmt.bare and any(marker.id is None for marker in opening):
        opening = ()
    found = replace(
        fmt,
        opening=opening,
        closing=known(fmt.closing),
        between=known(fmt.between),
        ending=known(fmt.ending),
        name_end=one(fmt.name_end),
        call_id=one(fmt.call_id),
        thought_end=replace(fmt.thought_end, id=special.get(fmt.thought_end.text)),
    )
    taken = {marker.id for marker in found.markers}
    return replace(found, silent_ids=tuple(sorted(set(special.values()) - taken)))
