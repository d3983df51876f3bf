"""How models write calls: a table of formats, and which of them a model's chat template shows.

hermes        <tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>, one below the other
llama3        {"name": "f", "parameters": {}}; {...}, after the token <|python_tag|> or without it
mistral       [TOOL_CALLS][{"name": "f", "arguments": {}}, {...}]
mistral_args  [TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}
generic       {"name": "f", "parameters": {}}, one below the other: what TGI's prompt asks for
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

CALLS_LIMIT = 64  # calls in one answer
TOKEN = "\ud800"  # before the text of a special token; half a surrogate pair, which no text has


@dataclass(frozen=True, slots=True)
class Marker:
    """A text of the frame around calls."""

    text: str
    id: int | None = None  # of the special token that it is; None: it is generated as text
    spaced: bool = False  # a space may come before it
    optional: bool = False  # text that some models leave out
    unwritten: bool = False  # text that some models add, and no template


# Thoughts before an answer stand between these, or before the second where the prompt has the first
THOUGHT, THOUGHT_END = Marker("<think>"), Marker("</think>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Arguments one by one: `before`, a name, `middle`, its value, `after`. Texts are written as they are."""

    before: tuple[Marker, ...]
    middle: tuple[Marker, ...]
    after: tuple[Marker, ...]
    kinds: tuple[str, str] | None = None  # behind `middle`, what says that the value is a text, or is JSON
    kind_end: tuple[Marker, ...] = ()
    named: bool = False  # behind `after` stands the name again, and then `middle`
    line: bool = False  # a line break may follow each value, and is written
    wrap: tuple[str, str] | None = None  # around texts that `bare` doesn't match
    bare: str = ""
    slips: tuple[str, ...] = ()  # no text holds them: an end that was misspelt, and what comes behind it

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Return every marker around names and values."""
        return self.before + self.middle + self.kind_end + self.after

    def ended(self, name: str) -> tuple[Marker, ...]:
        """Return what ends the value of this name."""
        return (*self.after, Marker(name), *self.middle) if self.named else self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Literals:
    """Arguments by name, as in a call of a programming language, with a literal for each value."""

    between: str = ", "
    setter: str = "="  # between a name and its value
    words: tuple[str, str, str] = ("True", "False", "None")  # for true, false and null
    quote: Marker | None = None  # around texts as they are; None: they are quoted, and escaped, as in Python

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Return every marker within arguments."""
        return () if self.quote is None else (self.quote,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Calls that are messages to functions, in the frames that all messages have (OpenAI's harmony)."""

    start: Marker
    channel: Marker
    message: Marker
    end: Marker
    kind: Marker  # may stand before the word that arguments are JSON

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Return every marker of a message."""
        return (self.start, self.channel, self.message, self.end, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A way to write calls: `opening`, calls with `closing` behind and `between` between them, `ending`.

    A call is a JSON object, `{<name_key>: ..., <arguments_key>: ...}`, or, where there is `name_end`, its
    bare name, these markers and its arguments. Arguments are JSON, or have `tags`, or are `literals`.
    """

    name: str
    opening: tuple[Marker, ...] = ()  # empty: calls begin with the answer
    bare_opening: tuple[Marker, ...] = ()  # of calls that are `bare`, in place of the other
    inner: tuple[str, ...] = ()  # special tokens, in some models, that are parts of markers
    lead: str = ""  # text right before `opening`, whose first marker is that token then
    closing: tuple[Marker, ...] = ()  # of each call
    between: tuple[Marker, ...]
    ending: tuple[Marker, ...] = ()
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""  # of an id that stands before the name
    trailing_id: bool = False  # an id may follow the arguments: `, "id": "..."`
    name_end: tuple[Marker, ...] | None = None  # none of them: arguments, or `closing`, end the name
    call_id: Marker | None = None  # may stand between a bare name and its end, with an id behind it
    id_form: str = "[a-zA-Z0-9]{9}"
    needs_id: bool = False  # `call_id` has to
    tags: Tags | None = None
    literals: Literals | None = None
    channels: Channels | None = None  # of which each call is one's message, and nothing above is said
    single: bool = False  # an answer has one call
    bare: bool = False  # a call may begin the answer, or follow a thought, without `opening` too
    native: bool = True  # the template tells the model of it, so nobody else has to
    silent_ids: tuple[int, ...] = ()  # special tokens that are no part of calls, ascending
    thought_end: Marker = THOUGHT_END

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Return every marker of the format."""
        names = (self.name_end or ()) + (() if self.call_id is None else (self.call_id,))
        tags = () if self.tags is None else self.tags.markers
        literals = () if self.literals is None else self.literals.markers
        channels = () if self.channels is None else self.channels.markers
        return self.opening + self.closing + self.between + self.ending + names + tags + literals + channels

    @property
    def led_opening(self) -> tuple[Marker, ...]:
        """Return the opening with the text before its first marker."""
        return (Marker(self.lead), *self.opening) if self.lead else self.opening

    @property
    def clear_names(self) -> bool:
        """Return whether what ends a name shows, whatever follows, that it was one."""
        return bool(self.name_end) and (self.tags is not None or self.literals is not None)


def unlike_text(markers: Iterable[Marker]) -> str:
    """Return what markers are for who reads texts and tokens as one: no text has what stands for a token."""
    return "".join(TOKEN + marker.text if marker.id is not None else marker.text for marker in markers)


def name_marks(fmt: ToolFormat) -> tuple[str, ...]:
    """Return the texts that a bare name can't hold, since they end it or begin a call."""
    if fmt.channels is not None:
        return (" ", "\n", "\t", *(marker.text for marker in fmt.channels.markers))
    if fmt.name_end is None:
        return ()
    before = () if fmt.tags is None else fmt.tags.before
    ends = [text_of(fmt.name_end)] if fmt.name_end else [text_of(before), text_of(fmt.closing)]
    ids = [fmt.call_id.text] if fmt.call_id is not None and not fmt.needs_id else []
    return (*ends, *ids, *(marker.text for marker in fmt.opening[:1]))


def with_tokens(fmt: ToolFormat, special: Mapping[str, int]) -> ToolFormat:
    """Return a format for a tokenizer's special tokens, given by their texts.

    A marker that is no special token is generated as text. A `<|python_tag|>` that isn't there drops
    out, since llama3's calls need no opening, as does the `<|python_start|>` of calls in a list.
    """

    inner = [text for text in fmt.inner if text in special]

    def known(markers: Iterable[Marker]) -> tuple[Marker, ...]:
        return tuple(one(part) for marker in markers for part in split_all(inner, marker))

    def one(marker: Marker) -> Marker:
        return replace(marker, id=special.get(marker.text))

    opening, tags, literals = known(fmt.opening), fmt.tags, fmt.literals
    has_lead = inner and opening[0].id is None and opening[1:] and opening[1].id is not None
    lead = opening[0].text if has_lead else ""
    if fmt.bare and any(marker.id is None for marker in opening[:1]):
        opening = ()
    if tags is not None:
        tags = replace(
            tags,
            before=known(tags.before),
            middle=known(tags.middle),
            kind_end=known(tags.kind_end),
            after=known(tags.after),
            slips=() if inner else tags.slips,  # which no text could hold anyway
        )
    if literals is not None and literals.quote is not None:
        literals = replace(literals, quote=one(literals.quote))
    channels = fmt.channels
    if channels is not None:
        channels = Channels(**{each.name: one(getattr(channels, each.name)) for each in fields(channels)})
    found = replace(
        fmt,
        channels=channels,
        opening=opening[1:] if lead else opening,
        lead=lead,
        closing=known(fmt.closing),
        between=known(fmt.between),
        ending=known(fmt.ending),
        name_end=None if fmt.name_end is None else known(fmt.name_end),
        call_id=None if fmt.call_id is None else one(fmt.call_id),
        tags=tags,
        literals=literals,
        thought_end=one(fmt.thought_end),
    )
    taken = {marker.id for marker in found.markers}
    return replace(found, silent_ids=tuple(sorted(set(special.values()) - taken)))


def split_all(inner: Sequence[str], marker: Marker) -> list[Marker]:
    """Return a marker in pieces, with each of some texts in pieces of their own."""
    pieces = [marker]
    for text in inner:
        pieces = [part for piece in pieces for part in split_at(text, piece)]
    return pieces


def split_at(inner: str, marker: Marker) -> list[Marker]:
    """Return a marker in pieces, with the text `inner` in one of its own, if there is any."""
    if inner not in marker.text:
        return [marker]
    before, _, behind = marker.text.partition(inner)
    pieces = [replace(marker, text=text) for text in (before, inner) if text]
    return [*pieces, *split_at(inner, replace(marker, text=behind))] if behind else pieces


def text_of(markers: Iterable[Marker]) -> str:
    """Return what markers are as a text."""
    return "".join(marker.text for marker in markers)
