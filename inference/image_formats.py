"""Which image format a file is of, by how it begins."""

from __future__ import annotations

FORMATS = ("PNG", "JPEG", "GIF", "WebP", "TIFF", "BMP")
BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"BM", "BMP"),
)


def image_format(data: bytes) -> str | None:
    """Return the format, None for what is none of those that are read."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    return next((name for beginning, name in BEGINNINGS if data.startswith(beginning)), None)
