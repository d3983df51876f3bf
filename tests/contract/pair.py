"""Two values of a member that differ in effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values of a member, and what else is as it isn't in the base."""

    one: Any
    other: Any
    beside: Mapping[str, Any] = field(default_factory=dict)  # in the object that has the member
    request: Mapping[str, Any] = field(default_factory=dict)  # in the body, or the instance of it
    prompt: str | None = None
    around: Mapping[str, Any] = field(default_factory=dict)  # in what has the array that the object is in
