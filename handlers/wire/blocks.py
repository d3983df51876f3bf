"""The messages and content blocks of Anthropic's Messages, as the messages that chat templates want."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.images import ImageUrl, quoted
from handlers.wire.messages import joined
from handlers.wire.sources import to_document, to_image
from handlers.wire.turns import BETWEEN, Turn, needed, note_call, opened
from handlers.wire.types import InputBlock, InputMessage, ResultBlock, SystemPrompt
from inference.errors import InvalidInput, Member

TEXT, IMAGE, DOCUMENT = "text", "image", "document"
USE, RESULT = "tool_use", "tool_result"
THINKING, REDACTED = "thinking", "redacted_thinking"
ROLES = ("user", "assistant", "system")
WHOSE = {USE: "assistant", RESULT: "user", THINKING: "assistant", REDACTED: "assistant"}
OF_RESULTS: Belongs = {TEXT: ("text",), IMAGE: ("source",), DOCUMENT: ("source", "title", "context")}
BELONGS: Belongs = {
    **OF_RESULTS,
    USE: ("id", "name", "input"),
    RESULT: ("tool_use_id", "content"),
    THINKING: ("thinking",),
    REDACTED: (),
}
ACCOUNTING = "x-anthropic-billing-header:"  # begins a block that Claude Code writes to Anthropic's accounts

Piece = str | ImageUrl


@dataclass(frozen=True, slots=True)
class Transcript:
    """What messages were made into."""

    messages: tuple[Turn, ...]
    images: tuple[ImageUrl, ...]  # in the messages, in order
    unread: tuple[str, ...]  # names of what isn't shown to the model


@dataclass(slots=True)
class Draft:
    """A message that is put together."""

    role: str
    pieces: list[Piece] = field(default_factory=list)
    calls: list[dict[str, object]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    answers: Mapping[str, str] = field(default_factory=dict)  # the call whose result it is, and its tool
    parted: bool = False  # what is said next is of another message than what was said before

    def say(self, piece: Piece) -> None:
        """Add a piece; an empty text is no reason to part anything."""
        if piece and self.parted:
            self.pieces.append(BETWEEN)
            self.parted = False
        self.pieces.append(piece)

    def turn(self, images: list[ImageUrl]) -> Turn:
        """Return the message; its images are added to `images`."""
        content = None if self.calls and not self.pieces else joined(self.pieces, images)
        turn: Turn = {"role": self.role, "content": content, **self.answers}
        if self.thoughts:
            turn["reasoning_content"] = BETWEEN.join(self.thoughts)
        if self.calls:
            turn["tool_calls"] = self.calls
        return turn


def to_transcript(given: Sequence[InputMessage], system: SystemPrompt | None) -> Transcript:
    """Return the messages of a conversation, after what the system says.

    Messages of one role that follow each other are one, and each result of a call is a message of the tool.
    Raises InvalidInput for a block that lacks something, or isn't read.
    """
    names = _called(given)
    said, unread = _system(system)
    drafts: list[Draft] = [Draft("system", [said])] if said else []
    for place, message in enumerate(given):
        where = f"messages[{place}]"
        role = message["role"]
        if role not in ROLES:
            raise InvalidInput(
                Member(f"{where}.role"), f" is {quoted(role)}, and is one of {', '.join(ROLES)}"
            )
        _read(message, where, drafts, names)
    images: list[ImageUrl] = []
    return Transcript(opened([draft.turn(images) for draft in drafts]), tuple(images), unread)


def _called(given: Iterable[InputMessage]) -> Mapping[str, str]:
    """Return the tools that calls are of, by the calls' ids."""
    names: dict[str, str] = {}
    for place, message in enumerate(given):
        content = message["content"]
        for at, block in enumerate(() if isinstance(content, str) else content):
            id = block.get("id") if block["type"] == USE else None
            if id:  # one that lacks it is refused when it is read
                note_call(names, id, block.get("name") or "", f"messages[{place}].content[{at}].id")
    return names


def _system(given: SystemPrompt | None) -> tuple[str, tuple[str, ...]]:
    """Return what the system says, and the names of what of it isn't shown."""
    if given is None or isinstance(given, str):
        return given or "", ()
    texts = [_system_text(block, f"system[{place}]") for place, block in enumerate(given)]
    shown = [text for text in texts if text and not text.startswith(ACCOUNTING)]
    hidden = any(text.startswith(ACCOUNTING) for text in texts)
    return BETWEEN.join(shown), (f"system[].{ACCOUNTING[:-1]}",) if hidden else ()


def _system_text(block: Mapping[str, object], where: str) -> str:
    kind, text = block["type"], block.get("text")
    if kind != TEXT:
        raise InvalidInput(Member(f"{where}.type"), f" is {quoted(str(kind))}: send blocks of type {TEXT!r}")
    if not isinstance(text, str):
        raise InvalidInput(Member(where), f" is of type {TEXT!r} and has no `{TEXT}`: add it")
    return text


def _read(message: InputMessage, where: str, drafts: list[Draft], names: Mapping[str, str]) -> None:
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        _draft_of(role, drafts).say(content)
        return
    others: list[tuple[InputBlock, str]] = []  # said after the results, which templates want behind the calls
    for at, block in enumerate(content):
        place = f"{where}.content[{at}]"
        _check_block(block, role, place)
        if block["type"] == RESULT:
            drafts.append(_result(block, place, names))
        else:
            others.append((block, place))
    if others or not content:
        draft = _draft_of(role, drafts)
        for block, place in others:
            _add(block, place, draft)


def _draft_of(role: str, drafts: list[Draft]) -> Draft:
    """Return the draft that a message belongs to: that of the message before it if the role is the same."""
    if drafts and drafts[-1].role == role:
        draft = drafts[-1]
        draft.parted = any(draft.pieces)
    else:
        draft = Draft(role)
        drafts.append(draft)
    return draft


def _check_block(block: InputBlock, role: str, where: str) -> None:
    kind = block["type"]
    if kind not in BELONGS:
        known = ", ".join(map(repr, BELONGS))
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {quoted(kind)}, and is one of {known}: leave the block out, or tell of it in a text",
        )
    whose = WHOSE.get(kind, role)
    if role != whose:
        raise InvalidInput(
            Member(where), f" is of type {kind!r}, and stands in messages of the role {whose!r} only"
        )
    refuse_others(block, BELONGS, kind, where)


def _add(block: InputBlock, where: str, draft: Draft) -> None:
    """Add a block to the message that it is part of."""
    kind = block["type"]
    if kind == USE:
        draft.calls.append(_call(block, where))
    elif kind == THINKING:
        thought = block.get("thinking")
        if thought is None:
            raise InvalidInput(Member(where), f" is of type {THINKING!r} and has no `thinking`: add it")
        draft.thoughts += [thought] if thought else []
    elif kind != REDACTED:
        draft.say(_piece(block, where))


def _call(block: InputBlock, where: str) -> dict[str, object]:
    id, name = needed(block.get("id"), "id", USE, where), needed(block.get("name"), "name", USE, where)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": block.get("input") or {}}}


def _result(block: InputBlock, where: str, names: Mapping[str, str]) -> Draft:
    id, content = needed(block.get("tool_use_id"), "tool_use_id", RESULT, where), block.get("content")
    if id not in names:
        raise InvalidInput(
            Member(f"{where}.tool_use_id"),
            f" is {quoted(id)}, and no `tool_use` in `messages` has it: send the "
            "message of the assistant that called, too, since nothing is stored",
        )
    pieces = [content] if isinstance(content, str) else _pieces(content or (), f"{where}.content")
    return Draft("tool", list(pieces), answers={"tool_call_id": id, "name": names[id]})


def _pieces(blocks: Iterable[ResultBlock], where: str) -> Iterator[Piece]:
    for at, block in enumerate(blocks):
        kind, place = block["type"], f"{where}[{at}]"
        if kind not in OF_RESULTS:
            raise InvalidInput(
                Member(f"{place}.type"),
                f" is {quoted(kind)}: send blocks of type {TEXT!r}, {IMAGE!r} or {DOCUMENT!r}",
            )
        refuse_others(block, OF_RESULTS, kind, place)
        yield _piece(block, place)


def _piece(block: InputBlock | ResultBlock, where: str) -> Piece:
    """Return a block's text, or its image."""
    kind, text, source = block["type"], block.get("text"), block.get("source")
    if kind == TEXT:
        if text is None:
            raise InvalidInput(Member(where), f" is of type {TEXT!r} and has no `{TEXT}`: add it")
        return text
    if source is None:
        raise InvalidInput(Member(where), f" is of type {kind!r} and has no `source`: add it")
    if isinstance(source, str):  # as of a `search_result`, which its type refuses
        raise InvalidInput(
            Member(f"{where}.source"), " is a text: give an object with the `type` of the source"
        )
    if kind == IMAGE:
        return to_image(source, where)
    about = (block.get("title"), block.get("context"))
    return "\n".join([*filter(None, about), to_document(source, f"{where}.source")])
