"""What the contract promises of Messages beyond shapes: how a stream's events go together, and echoes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Body = Mapping[str, Any]

START, BEGUN, PIECE, ENDED = (
    *("message_start", "content_block_start"),
    *("content_block_delta", "content_block_stop"),
)
LAST = ["message_delta", "message_stop"]
CUT = ("max_tokens", "model_context_window_exceeded")


def message_problems(events: Sequence[Any], *, failed: bool) -> Iterator[str]:
    """Yield what is wrong with a stream's events, the one that tells of a failure apart."""
    kinds = [event["type"] for event in events]
    if kinds[0] != START or kinds.count(START) != 1:
        yield f"a stream begins once, with {START}: {kinds[:3]}"
    ends = [kind for kind in kinds if kind in LAST]
    if ends != ([] if failed else LAST) or (not failed and kinds[-2:] != LAST):
        yield f"a stream ends with {LAST}, and one that fails with none of them: {kinds[-3:]}"
    open_one: int | None = None
    begun = 0
    for event in events:
        if event["type"] == BEGUN:
            if open_one is not None or event["index"] != begun:
                yield f"the block {event['index']} begins where {begun} is to, and {open_one} is open"
            open_one, begun = event["index"], begun + 1
        elif event["type"] in (PIECE, ENDED):
            if event["index"] != open_one:
                yield f"the block {event['index']} goes on, and {open_one} is open"
            open_one = None if event["type"] == ENDED else open_one
    if open_one is not None and not failed:
        yield f"the block {open_one} has no end"


def put_together(events: Sequence[Any]) -> dict[str, Any]:
    """Return the answer that the events of a stream are, as clients do; {} if it failed."""
    if events[-1]["type"] != LAST[-1]:
        return {}
    answer = {**events[0]["message"], **events[-2]["delta"], "usage": events[-2]["usage"]}
    blocks = [event["content_block"] for event in events if event["type"] == BEGUN]
    for at, block in enumerate(blocks):
        pieces = [event["delta"] for event in events if event["type"] == PIECE and event["index"] == at]
        if block["type"] == "text":
            block["text"] = "".join(piece["text"] for piece in pieces)
        elif block["type"] == "thinking":
            block["thinking"] = "".join(piece.get("thinking", "") for piece in pieces)
        else:
            block["input"] = _input("".join(piece["partial_json"] for piece in pieces))
    return {**answer, "content": blocks}


def answer_problems(body: Body, answer: Body) -> Iterator[str]:
    """Yield what a whole answer has to have in common with its request."""
    reason, usage, limit = answer["stop_reason"], answer["usage"], body.get("max_tokens")
    if limit is not None and usage["output_tokens"] > limit:
        yield f"{limit} tokens were asked for at most, and {usage['output_tokens']} came"
    if reason == "max_tokens" and usage["output_tokens"] != limit:
        yield f"a text that ended at {limit} tokens has {usage['output_tokens']}"
    stopped = answer["stop_sequence"]
    if (reason == "stop_sequence") is not (stopped is not None):
        yield f"an answer that ended by {reason!r} has the stop sequence {stopped!r}"
    if stopped is not None and stopped not in (body.get("stop_sequences") or ()):
        yield f"the stop sequence {stopped!r} wasn't asked for"
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    if reason == "tool_use" and not calls:
        yield "calls are to be answered, and there are none"
    if calls and reason not in ("tool_use", *CUT):
        yield f"an answer with calls ended by {reason!r}"
    if not answer["content"]:
        yield "an answer without any block"


def _input(arguments: str) -> Any:
    """Return the arguments of a call; {} of one that was cut."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
