"""Thoughts in a channel of their own (OpenAI's harmony), told from the words in others."""

from __future__ import annotations

import re
from enum import Enum, auto

from inference.thoughts.formats import ChannelFormat
from inference.thoughts.tags import Trimmed
from inference.thoughts.types import Place, Split
from inference.tools.channel_rules import FUNCTION

CALLED = re.compile(rf"{re.escape(FUNCTION)}(?P<name>\S+)")
BETWEEN = "\n\n"  # stands between messages of one kind
HEAD_CHARACTERS = 256  # of a head; a longer one is none


class Stage(Enum):
    """Which part of a message comes."""

    HEAD = auto()
    THOUGHT = auto()
    WORDS = auto()
    CALL = auto()


STAGES = {Place.START: Stage.HEAD, Place.THOUGHT: Stage.THOUGHT, Place.WORDS: Stage.WORDS}


class ChannelSplitter:
    """Tells messages that are thoughts from all others, whose channel only says what they are."""

    def __init__(self, fmt: ChannelFormat, place: Place, functions: frozenset[str] = frozenset()) -> None:
        """`functions` are those that may be called."""
        self._fmt = fmt
        self._functions = functions
        self._longest = HEAD_CHARACTERS + max(map(len, functions), default=0)
        self._stage = STAGES[place]
        self._head = ""  # text of a head
        self._named = ""  # the same, with a space for each special token in it
        self._author = ""  # of this message, with whom it is for
        self._has_channel = False  # in this head
        self._has_heads = place is not Place.START  # some message had one
        self._spoke = place is Place.WORDS  # there have been words
        self._between = ""  # what stands before the next words
        self._thought = Trimmed()

    @property
    def unsure(self) -> bool:
        """Return whether it isn't known yet if there is a thought: what no head precedes is words."""
        return self._stage is Stage.HEAD and not self._has_heads

    @property
    def naming(self) -> bool:
        """Return whether what comes says what the message is."""
        return self._stage is Stage.HEAD and self._has_heads

    @property
    def calling(self) -> bool:
        """Return whether what comes are a call's arguments."""
        return self._stage is Stage.CALL

    @property
    def within(self) -> bool:
        """Return whether what comes is thought."""
        return self._stage is Stage.THOUGHT

    @property
    def thinking(self) -> bool:
        """Return whether no words come now."""
        return self._stage is not Stage.WORDS

    def push(self, text: str) -> Split:
        """Take more text."""
        if self._stage is Stage.THOUGHT:
            return Split(text, self._thought.more(text))
        if self._stage is Stage.WORDS:
            return self._words(text)
        if self._stage is Stage.CALL:
            return Split(text, arguments=text)
        self._head += text
        self._named += text
        if len(self._head) <= self._longest and (self._has_heads or begins_head(self._head)):
            return Split()
        self._stage = Stage.WORDS
        return self._words(self._taken()[0])

    def special(self, token_id: int) -> Split:
        """Take a special token; return what it makes sure of the text before it."""
        if self._stage is not Stage.HEAD:
            if token_id in (self._fmt.start.id, self._fmt.end.id):
                self._stage, self._has_channel, self._author = Stage.HEAD, False, ""
            return Split()
        if token_id == self._fmt.channel.id:
            self._has_channel = self._has_heads = True
            head, self._author = self._taken()
            return Split(head)
        if token_id != self._fmt.message.id:
            self._named += " "
            return Split()
        head, named = self._taken()
        called = CALLED.search(f"{self._author} {named}")
        if called is not None and called["name"] in self._functions:
            self._stage = Stage.CALL
            return Split(head, call=called["name"])
        if self._has_channel and named.strip() == self._fmt.thoughts:
            self._stage = Stage.THOUGHT
            self._thought.part(BETWEEN)
        else:
            self._stage = Stage.WORDS
            self._between = BETWEEN if self._spoke else ""
        return Split(head)

    def rest(self) -> Split:
        """Return what was held back; use it once, at the end: a head that is cut is none of the words."""
        head, _ = self._taken()
        return Split(head) if self._has_heads else Split(words=head)

    def _words(self, text: str) -> Split:
        if not text:
            return Split()
        between, self._between, self._spoke = self._between, "", True
        return Split(words=text, between=between)

    def _taken(self) -> tuple[str, str]:
        taken = self._head, self._named
        self._head = self._named = ""
        return taken


def begins_head(text: str) -> bool:
    """Return whether a text that no special token precedes may be a head: it says whom a message is for."""
    named = text.lstrip()
    return FUNCTION.startswith(named[: len(FUNCTION)])
