"""The vocabulary of thoughts: where an answer begins, and what a piece of it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Place(StrEnum):
    """Where a prompt leaves off."""

    START = "start"  # before the answer, which may begin with a thought
    THOUGHT = "thought"  # within a thought
    WORDS = "words"  # within what is said


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtUse:
    """That one answer's thoughts are told apart from it; without one they are a part of its text."""

    place: Place = Place.START
    shown: bool = True  # false: the client doesn't want to see them


class Split(NamedTuple):
    """What a piece of text is, once that is sure."""

    lead: str = ""  # text before the words as it was generated: thoughts, and the notation around them
    thought: str = ""  # what of it was thought, without white space around
    words: str = ""  # what is said, behind `lead`
    between: str = ""  # what is put before these words, and wasn't generated
    call: str = ""  # the name of a function that is called from here on
    arguments: str = ""  # a piece of what it is called with, a part of `lead`


class Splitter(Protocol):
    """Tells the thoughts of one answer from its words, while it is generated."""

    @property
    def unsure(self) -> bool:
        """Return whether it isn't known yet if there is a thought."""

    @property
    def within(self) -> bool:
        """Return whether what comes is thought."""

    @property
    def naming(self) -> bool:
        """Return whether what comes only says what follows it."""

    @property
    def calling(self) -> bool:
        """Return whether what comes are a call's arguments."""

    @property
    def thinking(self) -> bool:
        """Return whether the words have not begun, or are interrupted."""

    def push(self, text: str) -> Split:
        """Take more text."""

    def special(self, token_id: int) -> Split:
        """Take a special token; return what it makes sure of the text before it."""

    def rest(self) -> Split:
        """Return what was held back; use it once, at the end."""
