"""Images in bodies: where they stand, and those that are sent whole; no other bytes are looked for here."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass

from handlers.wire.types import ImageUrl as WireUrl
from inference.errors import InvalidInput, Member
from inference.types import VisionInfo

# As TGI's: an image without an alternative text; one that has a text is a text
OPENING, CLOSING = "![](", ")"
ADDRESS = re.compile(r"https?://", re.IGNORECASE)
DATA = "data:"
BASE64 = ";base64"
TEXTS = ("inputs", "prompt", "data")  # members whose texts may have images
CLOSED = frozenset(  # members that have no images, whatever their own members are called
    ("chat_template_kwargs", "grammar", "metadata", "parameters", "response_format", "text", "tools")
)
SOURCE = "source"  # of a block of Anthropic's; an image, or the text of a document
ARGUMENTS = "input"  # of a call, as Anthropic writes it; an array of it is a conversation of Responses
QUOTED = 80  # characters of what is sent, in a message
ITSELF = "send the image itself, as data:image/png;base64,..."
INSTEAD = f"{ITSELF}, or its address, https://..."


@dataclass(frozen=True, slots=True)
class ImageUrl:
    """An image that a body names, or has in it."""

    where: Member  # messages[0].content[1].image_url.url
    url: str
    kind: str = "image_url"  # the type of its part
    part: str = ""  # where that is: messages[0].content[1]; "" for an image within a text

    @property
    def whole(self) -> bool:
        """Return whether the URL is the image itself."""
        return is_whole(self.url)

    def refused(self, reason: str) -> InvalidInput:
        """Return what is raised because of this image."""
        return InvalidInput(self.where, f": {reason}")


def is_whole(url: str) -> bool:
    """Return whether an URL is the image itself."""
    return url[: len(DATA)].lower() == DATA


@dataclass(frozen=True, slots=True)
class Sighted:
    """A text for a model that sees: with the model's mark in the place of each of its images."""

    text: str
    images: tuple[ImageUrl, ...] = ()


def to_image_url(given: WireUrl, part: str) -> ImageUrl:
    """Return the image of a part, whatever its URL is."""
    if isinstance(given, str):
        return ImageUrl(Member(f"{part}.image_url"), given, part=part)
    return ImageUrl(Member(f"{part}.image_url.url"), given["url"], part=part)


def to_sighted(text: str, vision: VisionInfo | None, where: str) -> Sighted:
    """Return a text with its Markdown images taken out; as it is if the model doesn't see.

    `where` is the member that has the text.
    """
    if vision is None or vision.reason or OPENING not in text:
        return Sighted(text)
    pieces = split_markdown(text)
    images = tuple(
        ImageUrl(Member(where, f"`{where}`, image {at}"), url) for at, url in enumerate(pieces[1::2], start=1)
    )
    return Sighted(vision.placeholder.join(pieces[::2]), images)


def split_markdown(text: str) -> list[str]:
    """Return the texts between Markdown's images, and between those the images' URLs.

    Looks at each character once; an expression would begin anew at each of half a million openings.
    """
    pieces: list[str] = []
    done = 0
    while (opened := text.find(OPENING, done)) >= 0:
        closed = text.find(CLOSING, opened)
        if closed < 0:
            break
        pieces += [text[done:opened], text[opened + len(OPENING) : closed]]
        done = closed + len(CLOSING)
    return [*pieces, text[done:]]


def check_kind(image: ImageUrl) -> None:
    """Raise InvalidInput in TGI's words for an URL that is neither an image nor an address."""
    if image.whole or ADDRESS.match(image.url):
        return
    raise image.refused(f"invalid image content: {quoted(image.url)}: {INSTEAD}")


def decoded(image: ImageUrl) -> bytes:
    """Return the bytes of an image that is sent whole; raise InvalidInput in TGI's words."""
    head, comma, content = image.url[len(DATA) :].partition(",")
    if not comma or not head.lower().endswith(BASE64):
        raise image.refused(f"invalid image content: {quoted(image.url)}: {INSTEAD}")
    media_type = head[: -len(BASE64)].partition(";")[0].strip().lower()
    if media_type and not media_type.startswith("image/") and media_type != "application/octet-stream":
        raise image.refused(f"invalid image content: its type is {quoted(media_type)}: {INSTEAD}")
    if content.endswith("==="):  # which Python takes in spite of its strict mode
        raise image.refused(f"base64 encoding is invalid: Excess padding: {INSTEAD}")
    try:
        return binascii.a2b_base64(content.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        reason = "it is not ASCII" if isinstance(error, UnicodeEncodeError) else error
        raise image.refused(f"base64 encoding is invalid: {reason}: {INSTEAD}") from None


def image_characters(body: object) -> int:
    """Return how much of a body is images that are sent whole, wherever they may stand."""
    found, left = 0, [body]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            for name, item in value.items():
                if name in CLOSED or (name == ARGUMENTS and isinstance(item, dict)):
                    continue
                found += _characters(name, item)
                if isinstance(item, dict | list) and not (name == SOURCE and isinstance(item, dict)):
                    left.append(item)
    return found


def _characters(name: str, item: object) -> int:
    if name == SOURCE and isinstance(item, dict):
        return _of_source(item)
    if name == "image_url":
        url = item.get("url") if isinstance(item, dict) else item
        return len(url) if isinstance(url, str) and is_whole(url) else 0
    texts = item if isinstance(item, list) else [item]
    if name not in TEXTS:
        return 0
    return sum(
        len(url)
        for text in texts
        if isinstance(text, str)
        for url in split_markdown(text)[1::2]
        if is_whole(url)
    )


def _of_source(source: Mapping[str, object]) -> int:
    """Return how much of a source is an image; a document's text is none, whatever is written in it."""
    kind = source.get("type")
    given = source.get({"base64": "data", "url": "url"}.get(str(kind), ""))
    if not isinstance(given, str):
        return 0
    return len(given) if kind == "base64" or is_whole(given) else 0


def refuse(image: ImageUrl, vision: VisionInfo | None) -> InvalidInput:
    """Return what is raised because the model takes no images."""
    if vision is None:
        text = "input_text" if image.kind == "input_image" else "text"
        return InvalidInput(
            Member(f"{image.part}.type"),
            f" is {image.kind!r}; this model reads text only: send parts of type {text!r}",
        )
    return image.refused(f"this model can't be given images here: {vision.reason}: send text only")


def quoted(text: str) -> str:
    """Return the beginning of what a client sent."""
    return repr(text) if len(text) <= QUOTED else f"{text[:QUOTED]!r}..."
