"""Calls and results of earlier turns, in the form that a model's chat template shows whole.

What a template leaves out or refuses is given to it as ordinary text, so that nothing of a
conversation is lost without a word.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from inference.tools.arguments import notation_of
from inference.tools.formats import ToolFormat, text_of
from inference.tools.habits import REASONING, Habits

Message = dict[str, Any]

SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
ID_LETTERS = string.digits + string.ascii_letters


def fit(messages: Iterable[Mapping[str, Any]], habits: Habits, fmt: ToolFormat) -> list[Message]:
    """Return messages as the template of these habits shows them; those given stay as they are."""
    chat = [without_empty_calls(message) for message in messages]
    if habits.short_ids:
        chat = [with_short_ids(message) for message in chat]
    elif fmt.needs_id:
        chat = with_numbered_ids(chat, fmt)
    names = call_names(chat)
    if habits.shows_calls:
        if habits.needs_object:
            chat = without_broken_calls(chat, names, fmt)
        if habits.single_calls:
            chat = one_call_each(chat)
        chat = [said for message in chat for said in told(message, habits)]
    else:
        chat = [with_calls_as_text(message, fmt) for message in chat]
    if not habits.shows_results:
        return with_results_as_text(chat, names)
    return [with_name(message, names) for message in chat] if habits.needs_names else chat


def written(fmt: ToolFormat, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the text with which a model of this format makes calls."""
    frame = (fmt.led_opening or fmt.bare_opening, fmt.closing, fmt.between, fmt.ending)
    opening, closing, between, ending = (
        text_of(marker for marker in markers if not marker.unwritten) for markers in frame
    )
    bodies = [body(fmt, call, at) + closing for at, call in enumerate(calls)]
    return opening + between.join(bodies) + ending


def body(fmt: ToolFormat, call: Mapping[str, Any], at: int) -> str:
    """Return the text of one call, the first being at 0, without its frame."""
    function = call["function"]
    arguments = notation_of(fmt).written(function.get("arguments"))
    if fmt.name_end is not None:
        call_id = (
            f"{fmt.call_id.text}{number_of(call, at)}" if fmt.call_id is not None and fmt.needs_id else ""
        )
        return f"{function['name']}{call_id}{text_of(fmt.name_end)}{arguments}"
    name = json.dumps(function["name"], ensure_ascii=False)
    call_id = f'"{fmt.id_key}": "{at}", ' if fmt.id_key else ""
    return f'{{{call_id}"{fmt.name_key}": {name}, "{fmt.arguments_key}": {arguments}}}'


def number_of(call: Mapping[str, Any], at: int) -> str:
    """Return the number of a call with a numbered id; `at` for others."""
    number = str(call.get("id", "")).rpartition(":")[2]
    return number if re.fullmatch("[0-9]{1,3}", number) else str(at)


def arguments_text(arguments: object) -> str:
    """Return arguments as JSON text; a string is such a text already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def without_empty_calls(message: Mapping[str, Any]) -> Message:
    """Return a copy without the list of calls if there are none: templates ask whether it is there."""
    return {key: value for key, value in message.items() if key != "tool_calls" or value}


def with_short_ids(message: Message) -> Message:
    """Return a message with the ids of calls, and of what it answers, in nine letters and digits."""
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [call | {"id": short_id(call["id"])} for call in message["tool_calls"]]
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = short_id(message["tool_call_id"])
    return changed


def short_id(given: str) -> str:
    """Return an id of nine letters and digits: the same for the same id, so that calls find their results."""
    if SHORT_ID.fullmatch(given):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    letters = []
    for _ in range(9):
        number, place = divmod(number, len(ID_LETTERS))
        letters.append(ID_LETTERS[place])
    return "".join(letters)


def with_numbered_ids(chat: Sequence[Message], fmt: ToolFormat) -> list[Message]:
    """Return a chat whose calls have the ids that a model of this format gives them, and results theirs.

    `functions.f:0`: what stands before the name, the name and a number, which goes on through the chat.
    """
    assert fmt.call_id is not None
    before, between = fmt.between[-1].text, fmt.call_id.text
    ids: dict[str, str] = {}
    numbered: list[Message] = []
    number = 0
    for message in chat:
        changed, calls = dict(message), []
        for call in message.get("tool_calls", ()):
            own = f"{before}{call['function']['name']}{between}{number}"
            number += 1
            calls.append(call | {"id": own})
            if "id" in call:
                ids[call["id"]] = own
        if calls:
            changed["tool_calls"] = calls
        if message.get("tool_call_id") in ids:
            changed["tool_call_id"] = ids[message["tool_call_id"]]
        numbered.append(changed)
    return numbered


def answered(chat: Iterable[Message]) -> Iterator[tuple[Message, Message, Message]]:
    """Yield each result with the message that called for it, and the call: the last one before it of its id.

    Ids may come again in a later turn: some clients count the calls of each.
    """
    calls: dict[object, tuple[Message, Message]] = {}
    for message in chat:
        calls.update({call.get("id"): (message, call) for call in message.get("tool_calls", ())})
        if is_result(message) and message.get("tool_call_id") in calls:
            yield (message, *calls[message.get("tool_call_id")])


def call_names(chat: Iterable[Message]) -> dict[int, str]:
    """Return of which function each result is, by the `id()` of its message, where a call tells."""
    return {
        id(result): call["function"]["name"]
        for result, _, call in answered(chat)
        if result.get("tool_call_id") is not None
    }


def with_name(message: Message, names: Mapping[int, str]) -> Message:
    """Return a message that says which function's result it is, if it is one and a call tells."""
    name = function_name(message, names)
    return message | {"name": name} if is_result(message) and name else message


def function_name(message: Message, names: Mapping[int, str]) -> str | None:
    """Return which function a result is of; None if neither it nor a call says so."""
    return message.get("name") or names.get(id(message))


def one_call_each(chat: Sequence[Message]) -> list[Message]:
    """Return a chat with one call in a message, each followed by its results."""
    apart: list[Message] = []
    at = 0
    while at < len(chat):
        message, after = chat[at], at + 1
        if len(message.get("tool_calls", ())) < 2:
            apart.append(message)
        else:
            while after < len(chat) and is_result(chat[after]):
                after += 1
            apart += calls_apart(message, chat[at + 1 : after])
        at = after
    return apart


def calls_apart(message: Message, answers: Sequence[Message]) -> list[Message]:
    """Return a message's calls, each in a message with its results behind it; then results of no call.

    A request may hold tens of thousands of results: each is looked at a fixed number of times.
    """
    by_id: dict[object, list[Message]] = {}
    for answer in answers:
        by_id.setdefault(answer.get("tool_call_id"), []).append(answer)
    apart: list[Message] = []
    words = message.get("content")
    for call in message["tool_calls"]:
        # Of calls with the same id the first gets all results
        apart += [message | {"content": words, "tool_calls": [call]}, *by_id.pop(call.get("id"), ())]
        words = None
    apart += [answer for answer in answers if answer.get("tool_call_id") in by_id]
    return apart


def is_result(message: Mapping[str, Any]) -> bool:
    """Return whether a message tells what a function returned."""
    return message.get("role") == "tool"


def told(message: Message, habits: Habits) -> list[Message]:
    """Return a message with its calls in the form of the template; two where words would hide the calls."""
    if "tool_calls" not in message:
        return [message]
    calls = message["tool_calls"]
    if habits.text_arguments:
        calls = [with_text_arguments(call) for call in calls]
    words = message.get("content")
    silent = message | {"content": None if habits.null_content else "", "tool_calls": calls}
    if not words:
        return [silent]
    if habits.thinks_alone:
        message = {name: value for name, value in message.items() if name not in REASONING}
    if habits.content_hides_calls:
        return [{"role": message["role"], "content": words}, silent]
    return [message | {"tool_calls": calls}]


def with_text_arguments(call: Mapping[str, Any]) -> Message:
    """Return a call whose arguments are JSON text."""
    function = call["function"]
    return {**call, "function": function | {"arguments": arguments_text(function.get("arguments"))}}


def with_calls_as_text(message: Message, fmt: ToolFormat) -> Message:
    """Return a message whose calls are part of its content."""
    if "tool_calls" not in message:
        return message
    content = message.get("content")
    text = written(fmt, message["tool_calls"])
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return rest | {"content": f"{content}\n{text}" if content else text}


def without_broken_calls(chat: Sequence[Message], names: Mapping[int, str], fmt: ToolFormat) -> list[Message]:
    """Return a chat with calls as text whose arguments are no object, and with their results as text."""
    broken = {
        id(message)
        for message in chat
        if any(isinstance(call["function"].get("arguments"), str) for call in message.get("tool_calls", ()))
    }
    if not broken:
        return [*chat]
    results = {id(result) for result, caller, _ in answered(chat) if id(caller) in broken}
    retold = [with_calls_as_text(message, fmt) if id(message) in broken else message for message in chat]
    return with_results_as_text(retold, names, results)


def with_results_as_text(
    chat: Iterable[Message], names: Mapping[int, str], told_ones: Collection[int] | None = None
) -> list[Message]:
    """Return a chat whose results are told by the user; what the user says next joins them.

    `told_ones`: the `id()` of those results, None for all. Many templates insist that user and assistant
    take turns.
    """
    retold: list[Message] = []
    results: list[str] = []  # told, and not yet in `retold`: they are joined once, as there may be many
    for message in chat:
        if is_result(message) and (told_ones is None or id(message) in told_ones):
            results.append(result_text(message, names))
            continue
        if results and message.get("role") == "user" and isinstance(message.get("content"), str):
            message = message | {"content": joined([*results, message["content"]])}
        elif results:
            retold.append({"role": "user", "content": joined(results)})
        results = []
        retold.append(message)
    return [*retold, {"role": "user", "content": joined(results)}] if results else retold


def joined(paragraphs: Iterable[str]) -> str:
    """Return what one message says of all that was to be told."""
    return "\n\n".join(paragraphs)


def result_text(message: Message, names: Mapping[int, str]) -> str:
    """Return what a function returned, in words."""
    name = function_name(message, names)
    function = f"The function {name}" if name else "The function"
    return f"{function} returned:\n{message['content']}"
