"""openapi/CHANGES.md as the gate reads it: breaking changes that are announced, by key and with a reason.

Under `## Not released yet` there may be a section `### Breaking`. Each of its items is the key of a change in
backticks, as `python -m codegen breaking` prints it, then a colon and the reason, which may go on over lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parents[1] / "openapi/CHANGES.md"
UNRELEASED = "Not released yet"
BREAKING = "Breaking"
REASON = "why, and what to do instead"  # what is printed in its place, to be replaced
ITEM = re.compile(r"`([^`]+)`: (.+)", re.DOTALL)
SHORTEST = 15  # characters of a reason


class AnnouncementError(ValueError):
    """The section on breaking changes isn't written as the gate reads it; the message says where."""


def announced(text: str) -> dict[str, str]:
    """Return the reason of each announced change by its key; AnnouncementError if one isn't well written."""
    found: dict[str, str] = {}
    for item in _items(text):
        match = ITEM.fullmatch(item)
        if match is None:
            raise AnnouncementError(f"under '### {BREAKING}', write '- `KEY`: REASON' and not {item[:60]!r}")
        key, reason = match[1], " ".join(match[2].split())
        if len(reason) < SHORTEST or reason == REASON:
            raise AnnouncementError(f"say why `{key}` changes, and what to do instead")
        if key in found:
            raise AnnouncementError(f"`{key}` is announced twice: leave one out")
        found[key] = reason
    return found


def released(text: str, version: str) -> str:
    """Return the text after a release: what wasn't released is that version's, and a new section begins."""
    heading = f"## {UNRELEASED}\n"
    if heading not in text:
        raise AnnouncementError(f"there is no '## {UNRELEASED}'")
    if f"\n## {version}\n" in text:
        raise AnnouncementError(f"there is a section of {version} already: give the next version")
    return text.replace(heading, f"{heading}\nNothing.\n\n## {version}\n", 1)


def _items(text: str) -> Iterator[str]:
    """Yield the items of the section, their lines joined."""
    section = _section(_section(text, f"## {UNRELEASED}"), f"### {BREAKING}")
    for item in re.split(r"\n(?=- )", section.strip()):
        if item and not item.startswith("- "):
            raise AnnouncementError(f"under '### {BREAKING}' there are only items, not {item[:60]!r}")
        if item:
            yield item.removeprefix("- ").strip()


def _section(text: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one that is as high."""
    level = heading.split(" ")[0]
    parts = re.split(rf"^(?={level} )", text, flags=re.MULTILINE)
    own = [part for part in parts if part.startswith(heading + "\n")]
    return own[0].removeprefix(heading) if own else ""
