"""How models write thoughts: a table of formats, and which of them a model's chat template mentions.

Nearly all write them between two marks, before what they say. gpt-oss writes messages, each into a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from inference.thoughts.types import Place
from inference.tools.formats import Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFormat:
    """Thoughts between two marks."""

    name: str
    opening: Marker
    closing: Marker
    label: str = ""  # stands behind the opening, and is no thought

    @property
    def is_hidden(self) -> bool:
        """Return whether no text shows where thoughts end."""
        return self.closing.id is not None

    def place(self, prompt: str) -> Place:
        """Return where a prompt leaves off; one that ends a thought itself wants none."""
        text = prompt.rstrip()
        if text.endswith((self.opening.text, self.opening.text + self.label.rstrip())):
            return Place.THOUGHT
        return Place.WORDS if text.endswith(self.closing.text) else Place.START

    def place_within(self, said: str) -> Place:
        """Return where an answer is that was begun with this text."""
        is_open = said.lstrip().startswith(self.opening.text) and self.closing.text not in said
        return Place.THOUGHT if is_open else Place.WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFormat:
    """Messages, each behind a head that names its channel (OpenAI's harmony).

    `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`
    """

    name: str
    start: Marker
    channel: Marker
    message: Marker
    end: Marker
    author: str = "assistant"  # stands behind `start`
    thoughts: str = "analysis"  # the channels by their names
    words: str = "final"

    is_hidden = True

    def place(self, prompt: str) -> Place:
        """Return where a prompt leaves off."""
        head, message, said = prompt.rpartition(self.message.text)
        if not message or self.end.text in said or self.start.text in said:
            return Place.START
        return Place.THOUGHT if head.endswith(self.channel.text + self.thoughts) else Place.WORDS

    def place_within(self, said: str) -> Place:
        """Return where an answer is that was begun with this text."""
        return Place.WORDS


ThoughtFormat: TypeAlias = TagFormat | ChannelFormat


def _tags(name: str, opening: str, closing: str, label: str = "") -> TagFormat:
    return TagFormat(name=name, opening=Marker(opening), closing=Marker(closing), label=label)


CHANNELS_SIGN = "<|channel|>analysis"  # by which a template shows that messages have channels
FORMATS: tuple[ThoughtFormat, ...] = (
    ChannelFormat(
        name="harmony",
        start=Marker("<|start|>"),
        channel=Marker("<|channel|>"),
        message=Marker("<|message|>"),
        end=Marker("<|end|>"),
    ),
    _tags("gemma", "<|channel>", "<channel|>", label="thought\n"),
    _tags("mistral", "[THINK]", "[/THINK]"),
    _tags("command", "<|START_THINKING|>", "<|END_THINKING|>"),
    _tags("seed", "<seed:think>", "</seed:think>"),
    _tags("minimax", "<mm:think>", "</mm:think>"),
    _tags("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    _tags("think", "<think>", "</think>"),  # of most: last, as templates mention it beside their own
)


def detect(constants: Iterable[str], special: Mapping[str, int]) -> ThoughtFormat | None:
    """Return the format of a model whose chat template has these texts, None if it shows no thoughts.

    `special` has the special tokens' ids by their texts. A mark that is none of them is generated as text.
    """
    texts = tuple(constants)
    for fmt in FORMATS:
        sign = fmt.closing.text if isinstance(fmt, TagFormat) else CHANNELS_SIGN
        if any(sign in text for text in texts):
            found = _with_tokens(fmt, special)
            if found is not None:
                return found
    return None


def _with_tokens(fmt: ThoughtFormat, special: Mapping[str, int]) -> ThoughtFormat | None:
    """Return a format for a tokenizer's special tokens; None for one that is none without them."""

    def known(marker: Marker) -> Marker:
        return replace(marker, id=special.get(marker.text))

    if isinstance(fmt, TagFormat):
        opening, closing = known(fmt.opening), known(fmt.closing)
        if (opening.id is None) != (closing.id is None):
            return None
        return replace(fmt, opening=opening, closing=closing)
    start, channel, message, end = map(known, (fmt.start, fmt.channel, fmt.message, fmt.end))
    if None in (start.id, channel.id, message.id, end.id):
        return None
    return replace(fmt, start=start, channel=channel, message=message, end=end)
