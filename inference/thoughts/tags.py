"""Thoughts between two marks, told from the words behind them while an answer is generated."""

from __future__ import annotations

from enum import Enum, auto

from inference.stop import overlap
from inference.thoughts.formats import TagFormat
from inference.thoughts.types import Place, Split

BLANK_CHARACTERS = 1024  # of white space before a thought, which else is words


class Stage(Enum):
    """Where in the answer a splitter is."""

    BEFORE = auto()  # nothing but white space, or a beginning of the opening mark, has come
    LABEL = auto()  # behind the opening mark
    INSIDE = auto()
    BEHIND = auto()  # behind the closing mark, before the first word
    WORDS = auto()


STAGES = {Place.START: Stage.BEFORE, Place.THOUGHT: Stage.LABEL, Place.WORDS: Stage.WORDS}


class TagSplitter:
    """Tells the thought before an answer from it, as soon as nothing that follows can change that.

    White space around a thought is its notation's, and so is that before the words behind it. Later marks
    are words like any other.
    """

    def __init__(self, fmt: TagFormat, place: Place, signs: frozenset[int] = frozenset()) -> None:
        """`signs` are special tokens by which calls of tools begin, be it in an open thought."""
        self._fmt = fmt
        self._signs = signs
        self._stage = STAGES[place]
        self._held = ""  # text of which it isn't known yet what it is
        self._thought = Trimmed()

    naming = False  # marks alone say what is what
    calling = False  # calls are told from the words elsewhere

    @property
    def unsure(self) -> bool:
        """Return whether it isn't known yet if there is a thought."""
        return self._stage is Stage.BEFORE

    @property
    def within(self) -> bool:
        """Return whether what comes is thought."""
        return self._stage in (Stage.LABEL, Stage.INSIDE)

    @property
    def thinking(self) -> bool:
        """Return whether the words have not begun."""
        return self._stage is not Stage.WORDS

    def push(self, text: str) -> Split:
        """Take more text."""
        if self._stage is Stage.WORDS:
            return Split(words=text)
        text, self._held = self._held + text, ""
        lead = thought = ""
        while text and self.thinking:
            taken, thoughts = self._step(text)
            lead, thought, text = lead + text[:taken], thought + thoughts, text[taken:]
            if self._held:
                return Split(lead, thought)
        return Split(lead, thought, text)

    def special(self, token_id: int) -> Split:
        """Take a special token; return what it makes sure of the text before it."""
        if self._stage is Stage.WORDS:
            return Split()
        is_sign = token_id in self._signs
        if self._stage is Stage.BEFORE:
            return self._opened(token_id, is_sign)
        held, self._held = self._held, ""
        if self.within and token_id == self._fmt.closing.id:
            self._stage = Stage.BEHIND
        elif is_sign:
            self._stage = Stage.WORDS
        return Split(held, self._thought.more(held))

    def rest(self) -> Split:
        """Return what was held back; use it once, at the end."""
        held, self._held = self._held, ""
        return Split(held, self._thought.more(held)) if self.within else Split(words=held)

    def _opened(self, token_id: int, is_sign: bool) -> Split:
        if token_id == self._fmt.opening.id:
            self._stage = Stage.LABEL
        elif is_sign:
            self._stage = Stage.WORDS
        else:
            return Split()  # one that means nothing
        held, self._held = self._held, ""
        return Split(words=held) if is_sign else Split(lead=held)

    def _step(self, text: str) -> tuple[int, str]:
        """Return how many characters are sure to be no words, and what of them is thought; hold the others.

        Or enter the next stage.
        """
        if self._stage is Stage.BEFORE:
            return self._before(text), ""
        if self._stage is Stage.LABEL:
            return self._label(text), ""
        if self._stage is Stage.INSIDE:
            return self._inside(text)
        body = text.lstrip()
        if body:
            self._stage = Stage.WORDS
        return len(text) - len(body), ""

    def _before(self, text: str) -> int:
        body, opening = text.lstrip(), self._fmt.opening
        begins = opening.id is None and opening.text.startswith(body[: len(opening.text)])
        if len(text) <= BLANK_CHARACTERS and (not body or (begins and len(body) < len(opening.text))):
            self._held = text
            return 0
        begins = begins and len(body) >= len(opening.text)
        self._stage = Stage.LABEL if begins else Stage.WORDS
        return len(text) - len(body) + len(opening.text) if begins else 0

    def _label(self, text: str) -> int:
        label = self._fmt.label
        if text != label and label.startswith(text):
            self._held = text
            return 0
        self._stage = Stage.INSIDE
        return len(label) if text.startswith(label) else 0

    def _inside(self, text: str) -> tuple[int, str]:
        closing = self._fmt.closing
        if closing.id is not None:
            return len(text), self._thought.more(text)
        at = text.find(closing.text)
        if at >= 0:
            self._stage = Stage.BEHIND
            return at + len(closing.text), self._thought.more(text[:at])
        size = len(text) - overlap(text, closing.text)
        self._held = text[size:]
        return size, self._thought.more(text[:size])


class Trimmed:
    """A text that grows, without white space around: that is told once something follows it."""

    def __init__(self) -> None:
        self._begun = False
        self._white: list[str] = []  # a text is put together of it once, however many pieces come

    def more(self, text: str) -> str:
        """Return what may be told now."""
        text = text if self._begun else text.lstrip()
        told = text.rstrip()
        if not told:
            self._white += [text] if text else []
            return ""
        before, self._white = "".join(self._white), [text[len(told) :]]
        self._begun = True
        return before + told

    def part(self, between: str) -> None:
        """Begin a further part of the text, behind `between` if there is one before it."""
        self._white = [between] if self._begun else []
