"""Two values of each member of the choice among tools, and of vLLM's forms of a text."""

from __future__ import annotations

from typing import Any

from tests.contract.member_bodies import ABSENT, CUSTOM, CUSTOM_TOOLS, OTHER_SCHEMA, SCHEMA
from tests.contract.pair import Pair


def allowed(name: str) -> dict[str, Any]:
    """Return a function as the choice among some has it."""
    return {"type": "function", "function": {"name": name}}


GUIDED = {
    "guided_json": Pair(SCHEMA, OTHER_SCHEMA),
    "guided_regex": Pair("a+", "b+"),
    "guided_choice": Pair(["a", "aa"], ["b"]),
    "structured_outputs": Pair({"choice": ["a"]}, {"choice": ["b"]}),
}
CHOSEN = {
    "allowed_tools": Pair(
        {"mode": "required", "tools": [allowed("f")]},
        {"mode": "required", "tools": [allowed("g")]},
        {"type": "allowed_tools", "function": ABSENT},
    )
}
PAIRS: dict[str, dict[str, Pair]] = {
    "StructuredOutputs": {
        "json": Pair(SCHEMA, OTHER_SCHEMA),
        "regex": Pair("a+", "b+"),
        "choice": Pair(["a", "aa"], ["b"]),
    },
    "AllowedTools": {
        "mode": Pair("auto", "required"),
        "tools": Pair([allowed("f")], [allowed("g")]),
    },
    "AllowedFunction": {
        "type": Pair("function", "custom"),
        "function": Pair({"name": "f"}, {"name": "g"}),
        "custom": Pair({"name": "f"}, {"name": "g"}, CUSTOM, CUSTOM_TOOLS),
    },
}
