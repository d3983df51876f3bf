"""Members of a body that exclude each other, as in TGI, unless a setting lets them stand together.

The document names the setting by `x-excludes-unless`, beside `x-excludes`: whose bodies may have both.
"""

from __future__ import annotations

from typing import Any

from handlers.settings.table import Settings

EXCLUDES, UNLESS = "x-excludes", "x-excludes-unless"


def lift_exclusions(document: dict[str, Any], settings: Settings) -> None:
    """Have the document, which is changed, say what the settings say: what is left of a mark holds.

    A setting is `all`, `none`, or `openai`: clients made for OpenAI's API alone.
    """
    for schema in document["components"]["schemas"].values():
        for member in schema.get("properties", {}).values():
            if UNLESS not in member:
                continue
            whose = getattr(settings, member[UNLESS])
            if whose != "openai":
                del member[UNLESS]
            if whose == "all":
                del member[EXCLUDES]
