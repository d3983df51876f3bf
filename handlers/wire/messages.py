"""Chat messages, as the request has them and as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal

from handlers.wire.belonging import refuse_others
from handlers.wire.custom_tools import INPUT
from handlers.wire.images import ImageUrl, quoted, to_image_url
from handlers.wire.tools import BELONGS, CUSTOM, FUNCTION, same, unlike
from handlers.wire.types import CalledFunction, Message, MessageChunk, MessageContent, MessageToolCall
from inference.errors import InvalidInput, Member
from inference.text.contents import IMAGE_PART
from inference.types import Messages

PARTS = ("text", "image_url", "refusal")  # the types, and the members that hold what they are of
APART = "make it a part of its own"
NO_ARGUMENTS = ("", "null")  # as several servers and models write those of a call without any
PASSED_ON: tuple[Literal["name", "tool_call_id", "reasoning_content", "reasoning"], ...] = (
    *("name", "tool_call_id", "reasoning_content", "reasoning"),
)


def to_template(messages: Iterable[Message]) -> tuple[Messages, tuple[ImageUrl, ...]]:
    """Return the messages with the arguments of their tool calls parsed, and the images in them, in order.

    Texts that follow each other are joined, refusals among them; a message with images has a list of texts
    and images for its content. Raises InvalidInput for a message that says nothing, and for parts and calls
    of a type that isn't read.
    """
    images: list[ImageUrl] = []
    read = tuple(_message(message, f"messages[{at}]", images) for at, message in enumerate(messages))
    return read, tuple(images)


def _message(message: Message, where: str, images: list[ImageUrl]) -> dict[str, object]:
    content, calls, refusal = message.get("content"), message.get("tool_calls"), message.get("refusal")
    if content is None and not calls and not refusal:
        raise InvalidInput(Member(where), " has no `content`, `refusal` or `tool_calls`: give it one of them")
    if refusal:
        content = [*_parts(content), {"type": "refusal", "refusal": refusal}]
    rendered: dict[str, object] = {"role": message["role"], "content": _content(content, where, images)}
    rendered |= {member: message[member] for member in PASSED_ON if message.get(member) is not None}
    if calls:
        rendered["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)
        ]
    return rendered


def joined(pieces: Iterable[str | ImageUrl], images: list[ImageUrl]) -> str | list[dict[str, str]]:
    """Return the content of a message whose texts and images are these; the images are added to `images`."""
    parts: list[dict[str, str]] = []
    texts: list[str] = []  # since the last image
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        images.append(piece)
        parts += [*_text("".join(texts)), dict(IMAGE_PART)]
        texts = []
    return [*parts, *_text("".join(texts))] if parts else "".join(texts)


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []


def _content(
    content: MessageContent | None, where: str, images: list[ImageUrl]
) -> str | list[dict[str, str]] | None:
    if content is None or isinstance(content, str):
        return content
    return joined((_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)), images)


def _parts(content: MessageContent | None) -> list[MessageChunk]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _part(part: MessageChunk, where: str) -> str | ImageUrl:
    """Return a part's text, or its image."""
    kind = part["type"]
    if kind not in PARTS:
        raise InvalidInput(
            Member(f"{where}.type"), f" is {quoted(kind)}: send parts of type 'text' or 'image_url'"
        )
    check_part(part, kind, PARTS, where)
    if kind == "image_url":
        return to_image_url(part.get("image_url") or "", where)
    return (part.get("refusal") if kind == "refusal" else part.get("text")) or ""


def check_part(part: Mapping[str, object], member: str, members: Iterable[str], where: str) -> None:
    """Raise InvalidInput for a part without the `member` of its type, or with another of the `members`."""
    if part.get(member) is None:
        raise InvalidInput(Member(where), f" is of type {part['type']!r} and has no `{member}`: add it")
    # TGI's client sends nulls
    other = next((name for name in members if name != member and part.get(name) not in (None, "")), None)
    if other is not None:
        raise InvalidInput(Member(where), f" is of type {part['type']!r} and has `{other}`, too: {APART}")


def _call(call: MessageToolCall, where: str) -> dict[str, object]:
    kind, custom = call["type"], call.get(CUSTOM)
    refuse_others(call, BELONGS, kind, where)
    if kind == CUSTOM and custom is not None:
        called = {"name": custom["name"], "arguments": {INPUT: custom["input"]}}
        return {"id": call["id"], "type": FUNCTION, "function": called}
    if kind != FUNCTION or "function" not in call:
        raise unlike(kind, where)
    function = call["function"]
    rendered = {"name": function["name"], "arguments": _arguments(function, f"{where}.function")}
    if function.get("description") is not None:
        rendered["description"] = function["description"]
    return {"id": call["id"], "type": "function", "function": rendered}


def _arguments(function: CalledFunction, where: str) -> object:
    """Return the arguments of a call; TGI takes them under two names."""
    arguments, other = function.get("arguments"), function.get("parameters")
    if arguments is None or other is None:
        return parsed_arguments(other if arguments is None else arguments)
    parsed = parsed_arguments(arguments)
    if not same(parsed, parsed_arguments(other)):
        raise InvalidInput(Member(where), " has `arguments` and `parameters`: they mean the same, give one")
    return parsed


def parsed_arguments(arguments: object) -> object:
    """Return the object that the JSON text of a call's arguments holds, or what isn't one as it is.

    Templates print it, and text would be escaped twice.
    """
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in NO_ARGUMENTS):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):  # not JSON, or nested without end
        return arguments  # a model wrote it, so it may be anything; the template then shows it as it is
    return parsed if isinstance(parsed, dict) else arguments
