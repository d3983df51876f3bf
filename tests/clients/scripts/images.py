"""Two images, as a client sends them whole."""

from __future__ import annotations

RED = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQMAAABJtOi3AAAABlBMVEXIHh4AAAA3yixZ"
    "AAAADElEQVR42mNgGNwAAACgAAGO+7G0AAAAAElFTkSuQmCC"
)
BLUE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQMAAABJtOi3AAAABlBMVEUeHsgAAADwkjUu"
    "AAAADElEQVR42mNgGNwAAACgAAGO+7G0AAAAAElFTkSuQmCC"
)
