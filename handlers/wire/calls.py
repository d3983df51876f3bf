"""An answer's tool calls on the wire: their ids, the deltas that carry them, the message they add up to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Literal, Protocol, TypeAlias
from uuid import uuid4

from handlers.wire.custom_tools import InputReader
from handlers.wire.types import (
    ChatCompletionDelta,
    DeltaCall,
    DeltaCustomTool,
    Function,
    FunctionCall,
    MessageCall,
    OutputMessage,
    TextDelta,
    ToolCallDelta,
)
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, ThoughtPart
from inference.types import Event, Messages

LONGEST_ID = 18  # digits of an id that is counted on from
ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning"]  # the member that has thoughts
FIELDS: tuple[ReasoningField, ...] = ("reasoning_content", "reasoning")


class Parser(Protocol):
    """What reads thoughts and calls out of a text.

    `inference.tools.parser.CallParser` is one, `inference.thoughts.reader.AnswerReader` the other.
    """

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far, the marks around it counted."""

    @property
    def untold_tokens(self) -> int:
        """Return how many tokens were none of what is said or called so far."""

    def push(self, event: Event) -> tuple[Part, ...]:
        """Return what an event adds."""

    def finish(self) -> tuple[Part, ...]:
        """Return what was held back, after the last event."""


class CallDeltas:
    """Makes the deltas of one answer that may call tools.

    The first delta of a call has its id, its name and the opening brace; those that follow have the rest of
    the arguments, and null for id and name, because OpenAI's client appends what it finds there.
    """

    def __init__(
        self,
        parser: Parser,
        ids: Iterator[str],
        thoughts: ReasoningField | None = None,
        *,
        custom: Collection[str] = (),
    ) -> None:
        """`thoughts` is the member that has what was thought; without one it isn't told.

        `custom` are the names of tools that take a text.
        """
        self._parser = parser
        self._ids = ids
        self._thoughts = thoughts
        self._custom = custom
        self._input: InputReader | None = None  # of the last call, if its tool takes a text
        self._begun: CallStart | None = None  # not told yet: it goes with the first of its arguments
        self._last: int | None = None  # index of the last call
        self._open = False  # the last call isn't complete

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far."""
        return self._parser.thought_tokens

    @property
    def untold_tokens(self) -> int:
        """Return how many tokens were none of what is said or called so far."""
        return self._parser.untold_tokens

    @property
    def complete(self) -> bool:
        """Return whether there are calls, and none of them was cut."""
        return self._last is not None and not self._open

    def push(self, event: Event) -> list[ChatCompletionDelta]:
        """Return the deltas of an event; its last event has at least one."""
        deltas = [delta for part in self._parser.push(event) for delta in self._deltas(part)]
        if event.finish is None:
            return deltas
        deltas += [delta for part in self._parser.finish() for delta in self._deltas(part)]
        deltas += self._first("")
        if not deltas:
            deltas.append(self._nothing())
        return deltas

    def _nothing(self) -> ChatCompletionDelta:
        """Return a delta that adds nothing to what was said or called last."""
        if self._last is None:
            return text_delta("")
        return call_delta(self._last) if self._input is None else custom_delta(self._last)

    def _deltas(self, part: Part) -> list[ChatCompletionDelta]:
        if isinstance(part, TextPart):
            return [text_delta(part.text)]
        if isinstance(part, ThoughtPart):
            return [] if self._thoughts is None else [thought_delta(self._thoughts, part.text)]
        if isinstance(part, CallStart):
            return self._start(part)
        if isinstance(part, CallEnd):
            self._open = False
            return self._first("")
        return self._arguments(part)

    def _start(self, part: CallStart) -> list[ChatCompletionDelta]:
        self._last, self._open = part.index, True
        self._input = InputReader() if part.name in self._custom else None
        if self._input is not None:
            return [custom_delta(part.index, id=next(self._ids), name=part.name)]
        self._begun = part
        return []

    def _arguments(self, part: CallArguments) -> list[ChatCompletionDelta]:
        if self._input is not None:
            text = self._input.read(part.text)
            return [custom_delta(part.index, text)] if text else []
        if self._begun is None:
            return [call_delta(part.index, part.text)]
        first = self._first(part.text[:1])
        return [*first, call_delta(part.index, part.text[1:])] if len(part.text) > 1 else first

    def _first(self, arguments: str) -> list[ChatCompletionDelta]:
        """Return the first delta of the call that has begun, if it hasn't been told."""
        begun, self._begun = self._begun, None
        if begun is None:
            return []
        return [call_delta(begun.index, arguments, id=next(self._ids), name=begun.name)]


def text_delta(text: str) -> TextDelta:
    """Return the delta that adds text to a message."""
    return {"content": text}


def thought_delta(field: ReasoningField, text: str) -> ChatCompletionDelta:
    """Return the delta that adds to what was thought; TGI's clients want a content in each."""
    if field == "reasoning":
        return {"content": "", "reasoning": text}
    return {"content": "", "reasoning_content": text}


def call_delta(
    index: int, arguments: str = "", *, id: str | None = None, name: str | None = None
) -> ToolCallDelta:
    """Return the delta that adds to a call's arguments."""
    function: Function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def custom_delta(
    index: int, text: str = "", *, id: str | None = None, name: str | None = None
) -> ToolCallDelta:
    """Return the delta that adds to the input of a custom tool's call."""
    custom: DeltaCustomTool = {"name": name, "input": text}
    return {"tool_calls": [{"index": index, "id": id, "type": "custom", "custom": custom}]}


def with_role(delta: ChatCompletionDelta) -> ChatCompletionDelta:
    """Return a delta that says whose message it is; OpenAI's client appends it to that of the one before."""
    if "content" in delta:
        return {"role": "assistant", **delta}
    return {"role": "assistant", "tool_calls": delta["tool_calls"]}


def message(deltas: Iterable[ChatCompletionDelta]) -> OutputMessage:
    """Return the message that deltas add up to; without text its content is null if there are calls."""
    texts: list[str] = []
    thoughts: dict[ReasoningField, list[str]] = {}
    calls: dict[int, DeltaCall] = {}
    arguments: dict[int, list[str]] = {}  # or the input of a custom tool
    for delta in deltas:
        if "content" in delta:
            texts.append(delta["content"])
            for field in FIELDS:
                if field in delta:
                    thoughts.setdefault(field, []).append(delta[field])
            continue
        for part in delta["tool_calls"]:
            at = part["index"]
            calls.setdefault(at, part)
            more = part["custom"]["input"] if part["type"] == "custom" else part["function"]["arguments"]
            arguments.setdefault(at, []).append(more)
    content, thought = "".join(texts), {field: "".join(pieces) for field, pieces in thoughts.items()}
    if not calls:
        return _with_thoughts({"role": "assistant", "content": content, "refusal": None}, thought)
    told = [_call(part, "".join(arguments[at])) for at, part in calls.items()]
    return _with_thoughts(
        {"role": "assistant", "content": content or None, "refusal": None, "tool_calls": told}, thought
    )


def _with_thoughts(told: OutputMessage, thoughts: Mapping[ReasoningField, str]) -> OutputMessage:
    for field, text in thoughts.items():
        told[field] = text
    return told


class CallIds:
    """The ids of the calls in the answers to a conversation; none comes twice in it.

    They are integers that go on from the largest in the conversation, as TGI's do, side by side in answers
    side by side; UUIDs if an id of the conversation is no integer. With an `answer`, the id of what has the
    calls, they are made of that, as OpenAI's come in no other conversation either: its clients put
    conversations together by them.
    """

    def __init__(
        self, messages: Messages, choices: int = 1, *, answer: str = "", prefix: str = "call_"
    ) -> None:
        self._stem = prefix + answer if answer else ""
        given = list(_ids(messages))
        known = all(id.isascii() and id.isdecimal() and len(id) <= LONGEST_ID for id in given)
        self._first = 1 + max(map(int, given), default=-1) if known else None
        self._choices = choices

    def of(self, choice: int) -> Iterator[str]:
        """Yield the ids of one answer's calls."""
        if self._stem:
            return (f"{self._stem}{place}" for place in count(choice, self._choices))
        if self._first is None:
            return (str(uuid4()) for _ in count())
        return map(str, count(self._first + choice, self._choices))


def _ids(messages: Messages) -> Iterator[str]:
    """Yield the ids of all calls that a conversation mentions; the call itself may have been left out."""
    for told in messages:
        if told.get("tool_call_id") is not None:
            yield str(told["tool_call_id"])
        calls = told.get("tool_calls")
        if isinstance(calls, Sequence):
            yield from (str(call["id"]) for call in calls if isinstance(call, Mapping))


def _call(first: DeltaCall, arguments: str) -> MessageCall:
    id, called = first["id"], first["custom"] if first["type"] == "custom" else first["function"]
    name = called["name"]
    assert id is not None
    assert name is not None
    if first["type"] == "custom":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": arguments}}
    function: FunctionCall = {"description": None, "name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}
