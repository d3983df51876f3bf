"""Chat messages, as the request has them and as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from handlers.wire.tools import same
from handlers.wire.types import CalledFunction, Message, MessageChunk, MessageContent, MessageToolCall
from inference.errors import InvalidInput

PASSED_ON: tuple[Literal["name", "tool_call_id"], ...] = ("name", "tool_call_id")


def to_template(messages: Iterable[Message]) -> tuple[dict[str, object], ...]:
    """Return the messages with their parts joined and the arguments of their tool calls parsed.

    Raises InvalidInput for a message that says nothing, and for parts and calls of a type that isn't read.
    """
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(messages))


def _message(message: Message, where: str) -> dict[str, object]:
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and not calls:
        raise InvalidInput(f"`{where}` has neither `content` nor `tool_calls`: give it one of them")
    rendered: dict[str, object] = {"role": message["role"], "content": _text(content, where)}
    rendered |= {member: message[member] for member in PASSED_ON if message.get(member) is not None}
    if calls:
        rendered["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)
        ]
    return rendered


def _text(content: MessageContent | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))


def _part(part: MessageChunk, where: str) -> str:
    kind = part["type"]
    if kind != "text":
        raise InvalidInput(
            f"`{where}.type` is {kind!r}; this model reads text only: send parts of type 'text'"
        )
    if "text" not in part:
        raise InvalidInput(f"`{where}` is of type 'text' and has no `text`: add it")
    return part["text"]


def _call(call: MessageToolCall, where: str) -> dict[str, object]:
    if call["type"] != "function" or "function" not in call:
        raise InvalidInput(
            f"`{where}` must be of type 'function' and have a `function`. Given: {call['type']!r}"
        )
    function = call["function"]
    rendered = {"name": function["name"], "arguments": _arguments(function, f"{where}.function")}
    if function.get("description") is not None:
        rendered["description"] = function["description"]
    return {"id": call["id"], "type": "function", "function": rendered}


def _arguments(function: CalledFunction, where: str) -> object:
    """Return the arguments of a call; TGI takes them under two names."""
    arguments, other = function.get("arguments"), function.get("parameters")
    if arguments is None or other is None:
        return _parsed(other if arguments is None else arguments)
    parsed = _parsed(arguments)
    if not same(parsed, _parsed(other)):
        raise InvalidInput(f"`{where}` has `arguments` and `parameters`: they mean the same, give one")
    return parsed


def _parsed(arguments: object) -> object:
    """Return the object that JSON text holds; templates print it, and text would be escaped twice."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):  # not JSON, or nested without end
        return arguments  # a model wrote it, so it may be anything; the template then shows it as it is
    return parsed if isinstance(parsed, dict) else arguments
