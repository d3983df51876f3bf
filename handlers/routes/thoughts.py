"""What becomes of a model's thoughts in the answer to a chat."""

from __future__ import annotations

from handlers.settings.table import Settings
from handlers.wire.calls import Parser
from handlers.wire.chat import Chat
from handlers.wire.conversation import Turn
from inference.errors import InvalidInput, Member
from inference.frontend.client import EngineClient
from inference.thoughts.formats import ChannelFormat, ThoughtFormat
from inference.thoughts.lead import led
from inference.thoughts.reader import AnswerReader
from inference.thoughts.types import Place, ThoughtUse
from inference.tools.parser import CallParser
from inference.types import Grammar

MEMBER = "reasoning_format"
APART = ("parsed", "hidden")


def thoughts_of(engine: EngineClient, settings: Settings, chat: Chat, prompt: str) -> ThoughtUse | None:
    """Return how thoughts are told apart from the answer to a prompt; None if they are a part of its text."""
    fmt, wanted = engine.thought_format, chat.reasoning_format or settings.reasoning_format
    if fmt is None:
        return None
    if not _calls_in_channels(engine, chat):  # which are found by telling the channels apart
        if wanted == "raw":
            return None
        if wanted == "auto" and not (fmt.is_hidden or chat.tells_thoughts):
            return None
    return ThoughtUse(place=_place(fmt, chat.conversation.ending(prompt), prompt), shown=wanted != "hidden")


def _place(fmt: ThoughtFormat, last: Turn | None, prompt: str) -> Place:
    """Return where a prompt leaves off, which may end with the `last` message's text.

    A text that is a part of the mark that the template writes is no end of the prompt.
    """
    place, text = fmt.place(prompt), "" if last is None else str(last["content"])
    if last is None or (place is not Place.START and fmt.place(text) is not place):
        return place
    return fmt.place_within(text) if last.get("role") == "assistant" else Place.START


def idle(engine: EngineClient, chat: Chat) -> tuple[str, ...]:
    """Return the member that says where thoughts are told, if it has no effect with this model."""
    if _calls_in_channels(engine, chat):
        return (MEMBER,) if chat.reasoning_format == "raw" else ()
    return (MEMBER,) if chat.reasoning_format in APART and engine.thought_format is None else ()


def with_room(engine: EngineClient, chat: Chat, grammar: Grammar | None) -> Grammar | None:
    """Return the grammar of an answer with room for a thought that is told apart from it.

    Without a form text is free, and where a call is bare, it is looked for behind any thought.
    """
    fmt, tools = engine.thought_format, chat.conversation.tools
    if grammar is None or fmt is None or chat.thoughts is None:
        return grammar
    is_free = chat.grammar is None and tools is not None and not tools.required
    if is_free and engine.tool_format.bare and not isinstance(fmt, ChannelFormat):
        return grammar
    in_channels = _calls_in_channels(engine, chat)
    if in_channels and chat.thoughts.place is Place.WORDS:
        raise InvalidInput(
            "a message that is begun can't be gone on with where tools may be called: set ",
            Member("continue_final_message"),
            " to false, or leave the tools out",
        )
    return led(grammar, fmt, chat.thoughts.place, in_channels=in_channels)


def reader_of(engine: EngineClient, chat: Chat) -> Parser | None:
    """Return what reads thoughts and calls out of an answer; None if all of it is text."""
    tools, thoughts = chat.conversation.tools, chat.thoughts
    if thoughts is None:
        return None if tools is None else CallParser(engine.tool_format, tools)
    calls = None
    if tools is not None and not _calls_in_channels(engine, chat):
        calls = CallParser(engine.tool_format, tools)
    return AnswerReader(engine.splitter(thoughts, tools), calls)


def _calls_in_channels(engine: EngineClient, chat: Chat) -> bool:
    """Return whether tools may be called, by messages in channels."""
    return chat.conversation.tools is not None and engine.tool_format.channels is not None
