"""Members of a body that exclude each other unless a setting lets them stand together.

The document names the setting beside `x-excludes`, by `x-excludes-unless`.
"""

from __future__ import annotations

from typing import Any

from handlers.settings import Settings

EXCLUDES, UNLESS = "x-excludes", "x-excludes-unless"


def lift_exclusions(document: dict[str, Any], settings: Settings) -> None:
    """Take what the settings lift out of the document, which is changed."""
    for schema in document["components"]["schemas"].values():
        for member in schema.get("properties", {}).values():
            if UNLESS in member and getattr(settings, member[UNLESS]):
                del member[EXCLUDES], member[UNLESS]
