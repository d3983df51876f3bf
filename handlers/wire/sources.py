"""The sources of Anthropic's images and documents."""

from __future__ import annotations

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.images import ImageUrl, quoted
from handlers.wire.types import BlockSource
from inference.errors import InvalidInput, Member

BASE64, URL, TEXT = "base64", "url", "text"
BELONGS: Belongs = {BASE64: ("media_type", "data"), URL: ("url",), TEXT: ("media_type", "data")}
PLAIN = "text/plain"


def to_image(source: BlockSource, block: str) -> ImageUrl:
    """Return the image of a block, whatever its source holds; raise InvalidInput for one of another type."""
    kind, where = source["type"], f"{block}.source"
    if kind not in (BASE64, URL):
        raise InvalidInput(
            Member(f"{where}.type"),
            f" is {quoted(kind)}: give an image by a source of type {BASE64!r} or {URL!r}",
        )
    refuse_others(source, BELONGS, kind, where)
    if kind == URL:
        return ImageUrl(Member(f"{where}.url"), _given(source.get("url"), "url", kind, where), "image", block)
    data = _given(source.get("data"), "data", kind, where)
    media_type = _given(source.get("media_type"), "media_type", kind, where)
    return ImageUrl(Member(f"{where}.data"), f"data:{media_type};base64,{data}", "image", block)


def to_document(source: BlockSource, where: str) -> str:
    """Return the text of a document's source; raise InvalidInput where that isn't a text."""
    kind, media_type = source["type"], source.get("media_type")
    if kind != TEXT or media_type not in (None, PLAIN):
        member, given = ("type", quoted(kind)) if kind != TEXT else ("media_type", repr(media_type))
        raise InvalidInput(
            Member(f"{where}.{member}"),
            f" is {given}, and only texts are read: give a document by a source of type {TEXT!r}, with its "
            "text in `data`",
        )
    refuse_others(source, BELONGS, kind, where)
    return _given(source.get("data"), "data", kind, where)


def _given(value: str | None, member: str, kind: str, where: str) -> str:
    if value is None:
        raise InvalidInput(Member(where), f" is of type {kind!r} and has no `{member}`: add it")
    return value
