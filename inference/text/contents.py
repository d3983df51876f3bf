"""What a message's content may be for a chat template, and messages with images in that form.

Templates of models that see go through the parts of a content, texts and images, and many of them take no
plain text; others know nothing but text. Which it is, a few renderings say. On its way to the template a
content is one text, in which marks stand for the images: what is done with texts is done with these, too.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.errors import InvalidInput, Member, TemplateFailed
from inference.types import Messages, VisionInfo

Message = dict[str, Any]
Render = Callable[[Sequence[Message]], str]  # raises TemplateFailed

IMAGE_PART: Mapping[str, str] = {"type": "image"}  # as transformers' own chats have them
WORDS = "probed_words"
TEXT_PART = {"type": "text", "text": WORDS}
PYTHON_OR_JSON = ("'type'", '"type"')  # a list that is written down, not gone through


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentHabits:
    """What a template makes of contents."""

    texts: bool = True  # it shows one that is a text
    images: bool = False  # it goes through a list of parts, and writes something for an image


class Marks:
    """Marks that stand for the images of one conversation, which no client can have written."""

    def __init__(self) -> None:
        self._stem = f"<image-here-{secrets.token_hex(12)}-"
        self._pattern = re.compile(f"{self._stem}([0-9]+)>")
        self.count = 0  # of images

    def write(self, messages: Messages) -> list[Message]:
        """Return messages whose contents are texts, with a mark for each image, and count these."""
        return [self._written(message) for message in messages]

    def _written(self, message: Mapping[str, Any]) -> Message:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return dict(message)
        return {**message, "content": "".join(self._part(part) for part in content)}

    def _part(self, part: Mapping[str, Any]) -> str:
        if part.get("type") != "image":
            return str(part.get("text", ""))
        self.count += 1
        return f"{self._stem}{self.count - 1}>"

    def split(self, content: str) -> list[str]:
        """Return the texts of a content, and between them the numbers of its images."""
        return self._pattern.split(content)

    def check_order(self, chat: Iterable[Message]) -> None:
        """Raise InvalidInput if images of a chat don't come in the order in which they were sent."""
        contents = (message.get("content") for message in chat)
        numbers = [
            int(number)
            for content in contents
            if isinstance(content, str)
            for number in self.split(content)[1::2]
        ]
        if numbers != sorted(numbers):
            raise InvalidInput(
                "images in results of tools come in another order than the calls that these belong to: send "
                "the results in the order of the calls"
            )


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a conversation, and how the model's prompts have them."""

    marks: Marks = field(default_factory=Marks)
    vision: VisionInfo | None = None

    def as_parts(self, chat: Iterable[Message]) -> list[Message]:
        """Return a chat whose contents are lists of parts."""
        return [self._as_parts(message) for message in chat]

    def in_texts(self, chat: Iterable[Message]) -> list[Message]:
        """Return a chat whose contents are texts, with what the model's prompts have for each image."""
        if not self.marks.count:
            return list(chat)
        assert self.vision is not None, "whoever takes images says how prompts have them"
        return [self._in_text(message, self.vision.placeholder) for message in chat]

    def shown_in(self, prompt: str) -> bool:
        """Return whether a prompt has as many marks as there are images."""
        return self.vision is None or prompt.count(self.vision.token) == self.marks.count

    def complaint(self, prompt: str) -> Exception:
        """Return what is raised for a prompt that has more or fewer marks than there are images."""
        assert self.vision is not None
        token, found, count = self.vision.token, prompt.count(self.vision.token), self.marks.count
        if found < count:
            return TemplateFailed(f"the chat template leaves out images: it shows {found} of {count}")
        return InvalidInput(
            f"the prompt has {found} times `{token}`, by which this model marks an image, for {count} "
            f"image{'s' * (count != 1)}: leave it out of ",
            Member("messages"),
            " and `tools`",
        )

    def _as_parts(self, message: Message) -> Message:
        content = message.get("content")
        if not isinstance(content, str):
            return message
        pieces = self.marks.split(content)
        parts: list[Mapping[str, str]] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                parts.append(dict(IMAGE_PART))
            elif piece or len(pieces) == 1:
                parts.append({"type": "text", "text": piece})
        return message | {"content": parts}

    def _in_text(self, message: Message, placeholder: str) -> Message:
        content = message.get("content")
        if not isinstance(content, str):
            return message
        pieces = self.marks.split(content)
        return message | {"content": placeholder.join(pieces[::2])}


def probe_contents(render: Render) -> ContentHabits:
    """Return what a template takes; refusals are part of that."""
    in_parts = _attempt(render, [TEXT_PART])
    with_image = _attempt(render, [dict(IMAGE_PART), TEXT_PART])
    goes_through = WORDS in in_parts and not _written_down(in_parts)
    return ContentHabits(
        texts=not goes_through or WORDS in _attempt(render, WORDS),
        images=goes_through
        and WORDS in with_image
        and with_image != in_parts
        and not _written_down(with_image),
    )


def _attempt(render: Render, content: object) -> str:
    try:
        return render([{"role": "user", "content": content}])
    except TemplateFailed:
        return ""


def _written_down(text: str) -> bool:
    return any(key in text for key in PYTHON_OR_JSON)
