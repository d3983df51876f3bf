"""The items of a Responses body, as the messages that chat templates want."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.images import ImageUrl, quoted
from handlers.wire.item_calls import (
    CALL,
    CALLS,
    CUSTOM_CALL,
    CUSTOM_RESULT,
    RESULT,
    RESULTS,
    SEARCH_CALL,
    SEARCH_RESULT,
    call_of,
    called,
    found,
    is_hosted,
)
from handlers.wire.messages import check_part, joined
from handlers.wire.offers import Offers, check_count, to_offers
from handlers.wire.turns import BETWEEN, Turn, needed, note_call, opened
from handlers.wire.types import InputContent, InputItem, InputPart, ResponsesInput
from inference.errors import InvalidInput, Member

MESSAGE, REASONING, ADDED, AGENTS = "message", "reasoning", "additional_tools", "agent_message"
REFERENCE, COMPACTION = "item_reference", "compaction"
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT, IMAGE, REFUSAL = "input_text", "input_image", "refusal"
SEALED = "encrypted_content"  # what one agent tells another: a text, as the model wrote it here
PARTS = {  # their types, and the members that hold what they are of
    **dict.fromkeys((TEXT, "output_text", "text"), "text"),
    **{IMAGE: "image_url", REFUSAL: "refusal", SEALED: "encrypted_content"},
}
TOLD_TOOLS = (None, "system", "developer")  # who tells the model of tools, whoever adds them
THOUGHTS = ("reasoning_text", "text")  # types of the parts of what was thought
BELONGS: Belongs = {
    MESSAGE: ("role", "content", "name"),
    CALL: ("call_id", "name", "namespace", "arguments"),
    RESULT: ("call_id", "name", "output"),
    CUSTOM_CALL: ("call_id", "name", "namespace", "input"),
    CUSTOM_RESULT: ("call_id", "name", "output"),
    SEARCH_CALL: ("call_id", "execution", "arguments"),
    SEARCH_RESULT: ("call_id", "execution", "tools"),
    ADDED: ("role", "tools"),
    AGENTS: ("content",),
}
KINDS = (*BELONGS, REASONING)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the input was made into."""

    messages: tuple[Turn, ...]
    images: tuple[ImageUrl, ...]  # in the messages, in order
    has_unread: bool  # there are thoughts that aren't shown: without a text, or what was said behind them
    offered: tuple[Offers, ...] = ()  # what items add to the tools
    left_out: tuple[str, ...] = ()  # kinds of items that aren't read, as the answer names them


def to_turns(given: ResponsesInput, instructions: str | None) -> Turns:
    """Return the messages of an input, after its instructions.

    What the system says before anybody else is one message, since most templates take one. A message of the
    assistant and the calls behind it are one, as they were when they were generated, and what was thought is
    the `reasoning_content` of what follows. Raises InvalidInput for
    an item that lacks something, or isn't read.
    """
    items: Sequence[InputItem] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    names = _called(items)
    turns: list[Turn] = [{"role": "system", "content": instructions}] if instructions else []
    images: list[ImageUrl] = []
    thought, unread = "", False
    offered: list[Offers] = []
    left_out: dict[str, None] = {}
    for place, item in enumerate(items):
        if is_hosted(item):
            left_out[f"input[].{item.get('type')}"] = None
            continue
        if _kind(item) in (ADDED, SEARCH_RESULT):
            offered.append(_more_tools(item, f"input[{place}]"))
            check_count(sum(len(offers.by_name) for offers in offered), "input")
        if _kind(item) == ADDED:
            if item.get("role") not in TOLD_TOOLS:
                left_out["input[].role"] = None
            continue
        if _kind(item) == REASONING:
            unread = unread or bool(thought)
            thought = _thought(item, f"input[{place}]")
            unread = unread or not thought
            continue
        turn = _turn(item, f"input[{place}]", names, images, offered)
        if thought and turn["role"] == "assistant":
            turn["reasoning_content"], thought = thought, ""
        unread, thought = unread or bool(thought), ""
        _add(turns, turn)
    return Turns(
        opened(turns),
        tuple(images),
        has_unread=unread or bool(thought),
        offered=tuple(offered),
        left_out=tuple(left_out),
    )


def _called(items: Iterable[InputItem]) -> Mapping[str, str]:
    """Return the functions that calls are of, by the calls' ids."""
    names: dict[str, str] = {}
    for place, item in enumerate(items):
        if _kind(item) in CALLS and not is_hosted(item):
            note_call(names, item.get("call_id") or "", called(item), f"input[{place}].call_id")
    return names


def _kind(item: InputItem) -> str:
    """Return an item's type; OpenAI takes one that has an id and no role for a reference."""
    bare = "role" not in item and "content" not in item and item.get("id") is not None
    return item.get("type") or (REFERENCE if bare else MESSAGE)


def _more_tools(item: InputItem, where: str) -> Offers:
    """Return the tools that an item adds."""
    tools, kind = item.get("tools"), _kind(item)
    refuse_others(item, BELONGS, kind, where)
    if tools is None:
        raise InvalidInput(Member(where), f" is of type {kind!r} and has no `tools`: add them")
    return to_offers(tools, f"{where}.tools")


def _turn(
    item: InputItem,
    where: str,
    names: Mapping[str, str],
    images: list[ImageUrl],
    offered: Sequence[Offers],
) -> Turn:
    """Return the message that an item is, or is part of; thoughts and tools in it are read before."""
    kind = _kind(item)
    refuse_others(item, BELONGS, kind, where)
    if kind == MESSAGE:
        return _message(item, where, images)
    if kind == AGENTS:
        return {"role": "user", "content": _content(_said(item, where), f"{where}.content", images)}
    if kind in CALLS:
        return {"role": "assistant", "content": None, "tool_calls": [call_of(item, where)]}
    if kind == SEARCH_RESULT:
        return _result({**item, "output": found(offered[-1])}, where, names, images)
    if kind in RESULTS:
        return _result(item, where, names, images)
    if kind == COMPACTION:
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {COMPACTION!r}, which OpenAI alone can read: send what it stands for",
        )
    if kind == REFERENCE:
        raise InvalidInput(
            Member(f"{where}.type"), f" is {REFERENCE!r}, and items are not stored: send the item itself"
        )
    raise InvalidInput(
        Member(f"{where}.type"),
        f" is {quoted(kind)}, and is one of {', '.join(map(repr, KINDS))}: leave the item out, "
        "or tell of it in a message",
    )


def _message(item: InputItem, where: str, images: list[ImageUrl]) -> Turn:
    role = item.get("role")
    if role is None:
        raise InvalidInput(Member(where), " is a message and has no `role`: add it")
    content = _said(item, where)
    if role not in ROLES:
        raise InvalidInput(
            Member(f"{where}.role"),
            f" is {quoted(role)}, and is one of {', '.join(ROLES)}; the result of a call is an "
            f"item of type {RESULT!r}",
        )
    turn: Turn = {"role": ROLES[role], "content": _content(content, f"{where}.content", images)}
    return {**turn, "name": item["name"]} if item.get("name") is not None else turn


def _said(item: InputItem, where: str) -> InputContent:
    """Return what a message says; raise InvalidInput for one that says nothing."""
    content = item.get("content")
    if content is None:
        raise InvalidInput(Member(where), " is a message and has no `content`: add it")
    return content


def _result(item: InputItem, where: str, names: Mapping[str, str], images: list[ImageUrl]) -> Turn:
    kind, output = _kind(item), item.get("output")
    id = needed(item.get("call_id"), "call_id", kind, where)
    if output is None:
        raise InvalidInput(Member(where), f" is of type {kind!r} and has no `output`: add it")
    if id not in names:
        raise InvalidInput(
            Member(f"{where}.call_id"),
            f" is {quoted(id)}, and no call in `input` has it: send the items of the answer "
            "that called, too, since nothing is stored",
        )
    content = _content(output, f"{where}.output", images)
    return {"role": "tool", "content": content, "tool_call_id": id, "name": item.get("name") or names[id]}


def _thought(item: InputItem, where: str) -> str:
    """Return what an item has been thought, as far as it is told in words."""
    content = item.get("content") or ""
    if isinstance(content, str):
        return content.strip()
    wrong = next((place for place, part in enumerate(content) if part["type"] not in THOUGHTS), None)
    if wrong is not None:
        raise InvalidInput(
            Member(f"{where}.content[{wrong}].type"),
            f" is {quoted(content[wrong]['type'])}: send parts of type {THOUGHTS[0]!r}",
        )
    return BETWEEN.join(part.get("text") or "" for part in content).strip()


def _content(content: InputContent, where: str, images: list[ImageUrl]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return joined((_part(part, f"{where}[{place}]") for place, part in enumerate(content)), images)


def _part(part: InputPart, where: str) -> str | ImageUrl:
    kind = part["type"]
    if kind not in PARTS:
        raise InvalidInput(
            Member(f"{where}.type"), f" is {quoted(kind)}: send parts of type {TEXT!r} or {IMAGE!r}"
        )
    check_part(part, PARTS[kind], PARTS.values(), where)
    if kind == IMAGE:
        return ImageUrl(Member(f"{where}.image_url"), part.get("image_url") or "", IMAGE, where)
    if kind == SEALED:
        return part.get("encrypted_content") or ""
    return (part.get("refusal") if kind == REFUSAL else part.get("text")) or ""


def _add(turns: list[Turn], turn: Turn) -> None:
    """Append a message, or put a call together with the message before it."""
    last = turns[-1] if turns else {}
    if "tool_calls" in turn and last.get("role") == "assistant":
        calls = last.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        assert isinstance(turn["tool_calls"], list)
        calls += turn["tool_calls"]
        thoughts = [str(each["reasoning_content"]) for each in (last, turn) if "reasoning_content" in each]
        last.update({"reasoning_content": BETWEEN.join(thoughts)} if thoughts else {})
    else:
        turns.append(turn)
