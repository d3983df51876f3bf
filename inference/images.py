"""The vocabulary of images in prompts: a part of `types.py`, which everybody takes it from.

An `Image` comes with a request and goes to the engine, and what the engine makes of it comes back as
`Looked`: the tokens that stand for the image in the prompt, which is then submitted as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Of all images of a request, one that comes several times once: they cross to the engine in one frame
ENOUGH_BYTES = 48 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as a client sent it."""

    data: bytes  # of a file: PNG, JPEG, GIF, WebP, TIFF or BMP


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionInfo:
    """How a model's prompts have images, or why they can't."""

    token: str  # the text of the token that marks one image in a prompt
    placeholder: str  # what stands in a prompt for one image, whole, with the mark once in it
    reason: str = ""  # why images are refused though the model sees; else both of the above are set
    row_id: int = -1  # of the token that images' rows stand in the places of; -1: not known
    before: str = ""  # ordinary text before an image's own tokens, which is cut into tokens with the prompt's
    behind: str = ""

    def around(self, prompt: str) -> str:
        """Return a prompt with the ordinary text that belongs to images around their marks."""
        if not (self.before or self.behind):
            return prompt
        return prompt.replace(self.token, f"{self.before}{self.token}{self.behind}")


@dataclass(frozen=True, slots=True)
class Looked:
    """What became of a request's images: the tokens that stand for each, or why there are none."""

    id: str
    images: tuple[tuple[int, ...], ...] = ()
    message: str = ""  # why not; then the request is forgotten
    invalid: bool = False  # they can't be served as they are: the caller's to mend
    which: int = 0  # of the images can't be read, from 1 on: what the message is about; 0: none by itself
    member: str = ""  # of the request, which stands before the message; "" for none


def distinct(images: Iterable[Image]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the files of images, one that several have but once, and which of them each image is.

    They are known by what they are, not by their bytes: comparing those would take its time.
    """
    files: dict[int, bytes] = {}
    order: dict[int, int] = {}
    which = []
    for image in images:
        files[id(image.data)] = image.data
        which.append(order.setdefault(id(image.data), len(order)))
    return tuple(files.values()), tuple(which)
