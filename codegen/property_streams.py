"""What the contract promises of a stream: its framing, its events' shapes, and how it ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from codegen.examples import read_frame
from codegen.property_contract import Dialect, Promise
from codegen.property_messages import message_problems
from codegen.property_responses import response_problems

COMMENT = ":"
Frame = tuple[str | None, str]  # an event's name, if it has one, and its data
SAME_IN_ALL = ("id", "object", "model", "created", "system_fingerprint")


def stream_problems(promise: Promise, text: str) -> Iterator[str]:
    """Yield what is wrong with a whole stream."""
    frames = text.split("\n\n")
    if frames.pop() != "":
        yield f"the stream ends within an event: {text[-80:]!r}"
    frames = [frame for frame in frames if frame != COMMENT]
    try:
        read = [read_frame(frame) for frame in frames]
    except ValueError as error:
        yield str(error)
        return
    found = {dialect.name: list(_in_dialect(dialect, read)) for dialect in promise.dialects}
    yield from min(found.values(), key=len, default=["the operation has no streams"])


def _in_dialect(dialect: Dialect, frames: Sequence[Frame]) -> Iterator[str]:
    """Yield what is wrong with a stream if it is of this dialect; more complaints, the farther off."""
    yield from _end_problems(dialect, [payload for _, payload in frames])
    events: list[Any] = []
    for name, payload in frames:
        if payload == dialect.terminator:
            continue
        try:
            event = json.loads(payload)
        except ValueError:
            yield f"an event is no JSON: {payload[:80]!r}"
            continue
        events.append(event)
        if name != (None if dialect.named_by is None else event.get(dialect.named_by)):
            yield f"an event has the name {name!r}: {payload[:80]!r}"
    if not events:
        yield "the stream has no events"
        return
    failures = [at for at, event in enumerate(events) if dialect.error.fits(event)]
    if failures and failures != [len(events) - 1]:
        yield f"an error event is the last one: of {len(events)}, number {failures[0] + 1} is one"
    tokens = [event for at, event in enumerate(events) if at not in failures]
    misfits = [event for event in tokens if not dialect.event.fits(event)]
    for event in misfits:
        yield f"an event doesn't fit {dialect.name}: {dialect.event.explain(event)}"
    if not misfits:
        yield from _story_problems(tokens, failed=bool(failures))


def _end_problems(dialect: Dialect, payloads: Sequence[str]) -> Iterator[str]:
    ends = [at for at, payload in enumerate(payloads) if payload == (dialect.terminator or "[DONE]")]
    if dialect.terminator is None:
        if ends:
            yield "the stream has `[DONE]`, which doesn't belong there"
    elif ends != [len(payloads) - 1]:
        yield f"`{dialect.terminator}` stands {len(ends)} times, not once and last"


def _story_problems(events: Sequence[Any], *, failed: bool) -> Iterator[str]:
    if events and "choices" in events[0]:
        yield from _openai_problems(events, failed=failed)
    elif events and str(events[0].get("type")).startswith("message"):
        yield from message_problems(events, failed=failed)
    elif events and "sequence_number" in events[0]:
        yield from response_problems(events, failed=failed)
    else:
        yield from _tgi_problems(events, failed=failed)


def _tgi_problems(events: Sequence[Any], *, failed: bool) -> Iterator[str]:
    """Yield what is wrong with TGI's events: numbered from 1, the last one alone has the text."""
    places = [event["index"] for event in events]
    if places != list(range(1, len(events) + 1)):
        yield f"events are numbered from 1: {places[:20]}"
    ended = [at for at, event in enumerate(events) if event["generated_text"] is not None]
    if failed and ended:
        yield "a stream that failed has no whole text"
    elif not failed and ended != [len(events) - 1]:
        yield f"{len(ended)} events have the whole text, not one alone, the last"
    if any(event["details"] is not None for event in events[:-1]):
        yield "an event before the last has details"


def _openai_problems(events: Sequence[Any], *, failed: bool) -> Iterator[str]:
    """Yield what is wrong with OpenAI's chunks: each choice ends once, and nothing of it follows."""
    for member in SAME_IN_ALL:
        if len({json.dumps(event.get(member)) for event in events}) > 1:
            yield f"`{member}` isn't the same in all chunks"
    finished: Counter[int] = Counter()
    seen: set[int] = set()
    for event in events:
        for choice in event["choices"]:
            seen.add(choice["index"])
            if finished[choice["index"]]:
                yield f"a chunk of choice {choice['index']} comes after its end"
            finished[choice["index"]] += bool(choice["finish_reason"])  # a completion's is "" until then
    open_ones = [index for index in seen if not finished[index]]
    if open_ones and not failed:
        yield f"choices {sorted(open_ones)} have no end"
    if sorted(seen) != list(range(len(seen))) and not failed:
        yield f"choices are numbered from 0: {sorted(seen)}"
    empty = [at for at, event in enumerate(events) if not event["choices"]]
    if empty and empty != [len(events) - 1]:
        yield "a chunk without choices is not the last one"
