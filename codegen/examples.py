"""The rules on examples: there are some, and they are true; for a stream that is its transcripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft4Validator

from codegen.document import EVENTS, SCHEMAS, At, Content, Document, Node, at

Finding = tuple[str, str]
FRAME = re.compile(r"(?:event: (?P<name>[^\r\n]+)\n)?data: (?P<data>[^\r\n]*)")


@dataclass(frozen=True, slots=True)
class Stream:
    """One dialect of a stream: the names of its events' schemas, and how they are framed."""

    event: str
    error: str
    terminator: str | None  # the line that ends it
    named_by: str | None = None  # the member that the `event:` lines repeat; None: there are none


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a stream's text holds."""

    events: tuple[Any, ...]
    terminator: str | None
    names: tuple[str | None, ...]  # of each event, by its `event:` line


def read_transcript(text: str) -> Transcript:
    """Read a stream's text; ValueError where it is not framed as the servers of TGI frame it."""
    if not text.endswith("\n\n"):
        raise ValueError("each event, the last one too, ends with an empty line")
    events: list[Any] = []
    names: list[str | None] = []
    terminator = None
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, payload = read_frame(frame)
        if terminator is not None:
            raise ValueError(f"nothing follows {terminator!r}")
        if payload.startswith("["):
            terminator = payload
        else:
            events.append(json.loads(payload))
            names.append(name)
    return Transcript(tuple(events), terminator, tuple(names))


def read_frame(frame: str) -> tuple[str | None, str]:
    """Return an event's name, if it has one, and its data; ValueError for a frame of any other form."""
    found = FRAME.fullmatch(frame)
    if found is None:
        raise ValueError(
            f"an event is one line that begins with 'data: ', and maybe its name, not {frame[:40]!r}"
        )
    return found["name"], found["data"]


def streams(document: Document) -> Iterator[Stream]:
    """Yield each dialect of each stream."""
    for content in _event_streams(document):
        yield from _dialects(content.node)


def media_examples(content: Content) -> Iterator[At]:
    """Yield the examples of a media type."""
    if "example" in content.node:
        yield At(at(content.pointer, "example"), content.node["example"])
    for name, example in content.node.get("examples", {}).items():
        yield At(at(content.pointer, "examples", name, "value"), example.get("value"))


def present(document: Document) -> Iterator[Finding]:
    """Each request and each response has an example."""
    for content in (*document.requests(), *document.responses()):
        if not list(media_examples(content)):
            yield content.pointer, "add an example: it is documentation, and a test"


def valid(document: Document) -> Iterator[Finding]:
    """Each example is what its schema describes."""
    for content in (*document.requests(), *document.responses()):
        for pointer, value in media_examples(content):
            yield from _violations(document, pointer, content.node["schema"], value)
    for name, header in document.components.get("headers", {}).items():
        if "example" in header:
            yield from _violations(
                document, at("#/components/headers", name), header["schema"], header["example"]
            )
    for operation in document.operations():
        for place, parameter in enumerate(operation.node.get("parameters", ())):
            pointer = at(operation.pointer, "parameters", str(place))
            yield from _violations(document, pointer, parameter["schema"], parameter.get("example"))


def outside_schemas(document: Document) -> Iterator[Finding]:
    """Examples stand at media types: those at single properties add up to objects that are not valid."""
    for pointer, schema in document.walk():
        if "example" in schema:
            yield at(pointer, "example"), "move it into the example of a request or a response"


def streams_described(document: Document) -> Iterator[Finding]:
    """Each stream says what its events are and how it ends, and its schema is the union of them."""
    for content in _event_streams(document):
        dialects = list(_dialects(content.node))
        names = {SCHEMAS + name for stream in dialects for name in (stream.event, stream.error)}
        union = document.resolve(content.node["schema"]).get("anyOf", ())
        if not dialects or {member.get("$ref") for member in union} != names:
            yield content.pointer, f"schema and x-sse disagree: the schema's anyOf must be {sorted(names)}"
        if not content.node.get("x-sse-transcript"):
            yield content.pointer, "add x-sse-transcript: a stream as it goes over the wire"


def transcripts_valid(document: Document) -> Iterator[Finding]:
    """Each transcript is a stream of one of its dialects, from the first event to the line that ends it."""
    for content in _event_streams(document):
        for name, text in content.node.get("x-sse-transcript", {}).items():
            pointer = at(content.pointer, "x-sse-transcript", name)
            try:
                transcript = read_transcript(text)
            except ValueError as error:
                yield pointer, str(error)
                continue
            problems = [_disagreement(document, stream, transcript) for stream in _dialects(content.node)]
            if all(problems):
                yield pointer, "; ".join(filter(None, problems))


def _disagreement(document: Document, stream: Stream, transcript: Transcript) -> str:
    """Say why a transcript is not one of this dialect; nothing if it is."""
    if transcript.terminator != stream.terminator:
        return (
            f"{stream.event}: the stream ends with {stream.terminator!r}, not with {transcript.terminator!r}"
        )
    event, error = (
        Draft4Validator(document.draft4({"$ref": SCHEMAS + name})) for name in (stream.event, stream.error)
    )
    last = len(transcript.events) - 1
    named = [None if stream.named_by is None else event[stream.named_by] for event in transcript.events]
    if list(transcript.names) != named:
        return f"{stream.event}: the events' names are those in {stream.named_by!r}, not {transcript.names}"
    for place, payload in enumerate(transcript.events):
        if not event.is_valid(payload) and not (place == last and error.is_valid(payload)):
            return f"{stream.event}: event {place}: {next(event.iter_errors(payload)).message[:200]}"
    return ""


def _violations(document: Document, pointer: str, schema: Node, value: Any) -> Iterator[Finding]:
    for error in Draft4Validator(document.draft4(schema)).iter_errors(value):
        yield at(pointer, *map(str, error.absolute_path)), f"the schema refuses it: {error.message[:200]}"


def _event_streams(document: Document) -> Iterator[Content]:
    return (content for content in document.responses() if content.media_type == EVENTS)


def _dialects(media_type: Node) -> Iterator[Stream]:
    return (Stream(**dialect) for dialect in media_type.get("x-sse", ()))
