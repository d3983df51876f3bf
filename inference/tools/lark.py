"""Texts, markers and tokens as llguidance's dialect of Lark writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from inference.tools.formats import Marker

ANY = "(?s:.*)"


def symbols(markers: Sequence[Marker]) -> str:
    """Return markers as Lark has them: special tokens by their ids, all else as literals."""
    parts: list[str] = []
    for (spaced, optional), group in groupby(markers, key=lambda marker: (marker.spaced, marker.optional)):
        for special, same in groupby(group, key=lambda marker: marker.id is not None):
            run = list(same)
            if special:
                parts += map(token, run)
            else:
                text = "".join(marker.text for marker in run)
                parts.append(f"/ ?{in_regex(text)}/" if spaced else literal(text) + ("?" if optional else ""))
    return " ".join(parts)


def literal(text: str) -> str:
    """Return a text as a string of Lark, which is one of JSON."""
    return json.dumps(text)


def in_regex(text: str) -> str:
    """Return the regular expression of exactly this text; it is safe between slashes, too."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def id_ranges(ids: Sequence[int]) -> str:
    """Return ascending ids as Lark has them: `1-3,7`."""
    runs: list[list[int]] = []
    for id in ids:
        if runs and id == runs[-1][1] + 1:
            runs[-1][1] = id
        else:
            runs.append([id, id])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def token(marker: Marker) -> str:
    """Return a special token as Lark has it."""
    return f"<[{marker.id}]>"
