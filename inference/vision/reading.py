"""The process that reads image files: what clients send is decoded here, and nothing else is done.

Decoders are native code that reads what strangers wrote. So they run in a process that has no request,
no weights, no secret of the environment and no socket of a client's, may have little memory and write no
file, and is ended when it takes too long: the engine's `reader.py` starts another. Files come over standard
input, pixels go back over standard output.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
import warnings
from io import BytesIO
from typing import BinaryIO

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
MOST_PIXELS = 64 * 1024 * 1024  # of one image, before it is decoded: 192 MiB
MOST_TIMES = 200  # that one side may be as long as the other: processors resize by the short one
MEMORY_BYTES = 2 * 1024**3  # address space, Python's own and several copies of such an image
MOST_SECONDS = 20  # of one file, should the engine have gone that would have ended it sooner
HEAD = struct.Struct(">?QII")  # whether it was read, bytes of pixels or of the message, width, height
SIZE = struct.Struct(">Q")  # bytes of the file


def main() -> None:
    """Read files until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    given, back = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what anything prints is no answer
    while (size := given.read(SIZE.size)) and len(size) == SIZE.size:
        data = given.read(SIZE.unpack(size)[0])
        signal.alarm(MOST_SECONDS)  # which ends the process
        answer(data, back)
        signal.alarm(0)


def answer(data: bytes, back: BinaryIO) -> None:
    """Write what a file holds, or why that can't be said."""
    try:
        width, height, pixels = read(data)
        head = HEAD.pack(True, len(pixels), width, height)
    except Exception as error:  # a decoder may raise anything about a file that it can't read
        pixels = complaint(error).encode(errors="replace")
        head = HEAD.pack(False, len(pixels), 0, 0)
    back.write(head)
    back.write(pixels)
    back.flush()


def complaint(error: Exception) -> str:
    """Return what is said of a file that can't be read."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # whose message has a place in memory
        return f"it is no {', '.join(FORMATS)} file"
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return " ".join(str(error).split())[:200] or type(error).__name__


def read(data: bytes) -> tuple[int, int, bytes]:
    """Return width, height and the pixels of a file's first image, three bytes each, as it is to be seen.

    Raises whatever Pillow does, and ValueError for an image with too many pixels, or all in a line.
    """
    from PIL import Image, ImageFile, ImageOps

    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.simplefilter("ignore", UserWarning)  # about what a file has besides its image
        image = Image.open(BytesIO(data), formats=FORMATS)
        check_size(image.width, image.height)
        image.seek(0)
        image.load()
        seen = ImageOps.exif_transpose(image).convert("RGB")  # as transformers' own `load_image` does it
    return seen.width, seen.height, seen.tobytes()


def check_size(width: int, height: int) -> None:
    """Raise ValueError for an image that is too large, or would be once its short side is."""
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width} x {height} pixels, and at most {MOST_PIXELS} are read")
    if max(width, height) > MOST_TIMES * min(width, height):
        raise ValueError(
            f"it has {width} x {height} pixels, and no side may be more than {MOST_TIMES} times the other"
        )


if __name__ == "__main__":
    main()
