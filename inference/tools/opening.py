"""Finds where the calls of an answer begin, while it is generated; what stands before them is words."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TypeAlias

from inference.stop import overlap
from inference.tools.formats import THOUGHT, THOUGHT_END, Marker, ToolFormat
from inference.tools.heads import BareBeginning, Beginning
from inference.tools.types import ToolUse
from inference.tools.whole import WholeCall

Begun: TypeAlias = BareBeginning | Beginning | WholeCall


def beginning_of(fmt: ToolFormat, use: ToolUse) -> Begun:
    """Return what tells whether an answer begins with a call; no JSON begins as a call with a bare name."""
    if fmt.bare_opening:
        return BareBeginning(fmt, use.tools)
    return WholeCall(fmt, use.tools) if use.formed else Beginning(use.tools)


class Opening:
    """Tells the words of one answer from its calls, as soon as nothing that follows can change it.

    White space between words and calls belongs to neither: models write it as a part of the calls' notation.
    """

    def __init__(self, fmt: ToolFormat, use: ToolUse) -> None:
        self._sign = fmt.opening[0] if fmt.opening else None
        self._lead = fmt.lead
        self._fmt, self._use = fmt, use
        self._formed = use.formed
        self._beginning = (
            beginning_of(fmt, use) if fmt.bare else None
        )  # of an answer, or of what follows a thought, that may be a call itself
        self._thought_end = fmt.thought_end if fmt.bare and not use.formed else None
        # In an open thought a sign that is text is spoken of; as a token of its own it is meant
        self._thinks = use.thinking and self._sign is not None and self._sign.id is None and not use.formed
        self._white: list[str] = []  # white space that is shown if text follows, and not before a call
        self._held = ""  # what else was read and may begin a call
        self.found = use.required  # calls have begun, and nothing but calls follows

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; return the words that are sure, and what follows the sign once calls are `found`.

        A call that is the beginning of the answer, or follows a thought, has no sign before it: all of it
        follows.
        """
        words = []
        while text and not self.found:
            if self._beginning is not None:
                text = self._begun(self._beginning, text)
            else:
                sure, text = self._words(text)
                words.append(sure)
        return "".join(words), text

    def special(self, token_id: int) -> str:
        """Take a special token, the sign of calls or one without meaning here; return the words before it."""
        held, self._held, self._beginning = self._held, "", None
        self._thinks = False
        if self._sign is not None and token_id == self._sign.id:
            self.found = True
            return self._shown(held.removesuffix(self._lead).rstrip())
        end = self._thought_end
        if end is not None and token_id == end.id:
            self._beginning = beginning_of(self._fmt, self._use)
        elif end is not None and end.id is None:
            self._thought_end = None
        return self._shown(held)  # what began before it doesn't go on behind it

    def rest(self) -> str:
        """Return what was held back; use it once, at the end of an answer in which no calls were found."""
        return "".join((*self._white, self._held))

    def _begun(self, beginning: Begun, text: str) -> str:
        """Return all that may have begun a call once it is known whether it did."""
        self._held += text
        is_call = beginning.push(text)
        if is_call is None:
            return ""
        self.found, self._beginning = is_call, None
        text, self._held = self._held, ""
        return text

    def _words(self, text: str) -> tuple[str, str]:
        """Return the words that are sure, and what follows the sign of calls or an end of a thought."""
        text, self._held = self._held + text, ""
        if self._formed and self._sign is not None and not begins_alike(text, self._sign):
            self._sign = None  # where it stands in a text of a form, it is part of that
        marks = self._marks()
        at, mark = first_of(text, marks)
        if mark is None:
            keep = len(text) - max((overlap(text, mark.text) for mark in marks), default=0)
            if self._lead and text.endswith(self._lead):  # it belongs to a sign that may follow
                keep = len(text) - len(self._lead)
            text, self._held = text[:keep], text[keep:]
            return self._spoken(text), ""
        words, text = text[:at], text[at + len(mark.text) :]
        if mark is self._sign:
            self.found = True
            return self._shown(words.rstrip()), text
        self._thinks = mark is THOUGHT
        if self._thought_end is not None:
            self._beginning = beginning_of(self._fmt, self._use)
        return self._shown(words + mark.text), text

    def _marks(self) -> tuple[Marker, ...]:
        """Return the texts at which words end, or something else begins to be looked for."""
        if self._thinks:
            return (THOUGHT_END,)
        if self._sign is not None and self._sign.id is None:
            return (self._sign,) if self._formed else (self._sign, THOUGHT)
        return () if self._thought_end is None or self._thought_end.id is not None else (self._thought_end,)

    def _spoken(self, text: str) -> str:
        """Return text, without white space at its end where that may belong to a sign of calls."""
        if self._sign is None:
            return self._shown(text)
        words = text.rstrip()
        shown = self._shown(words)
        self._white.append(text[len(words) :])
        return shown

    def _shown(self, words: str) -> str:
        """Return words with the white space that was held back before them."""
        if not words:
            return ""
        shown = "".join((*self._white, words))
        self._white.clear()
        return shown


def first_of(text: str, marks: Sequence[Marker]) -> tuple[int, Marker | None]:
    """Return where the first of some marks stands in a text, and which it is."""
    places = [(at, mark) for mark in marks if (at := text.find(mark.text)) >= 0]
    return min(places, key=itemgetter(0), default=(len(text), None))


def begins_alike(text: str, sign: Marker) -> bool:
    """Return whether a text begins with a sign, or may do so once it goes on; a special token isn't text."""
    begun = text.lstrip(" ") if sign.spaced else text
    return sign.id is not None or begun.startswith(sign.text) or sign.text.startswith(begun)
