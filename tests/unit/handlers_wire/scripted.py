"""A parser of calls that gives what it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from inference.tools.types import Part
from inference.types import Event


class ScriptedParser:
    """Gives parts for each event, and parts at the end."""

    thought_tokens = untold_tokens = 0

    def __init__(self, pushes: Sequence[Sequence[Part]], rest: Sequence[Part] = ()) -> None:
        self._pushes = iter(pushes)
        self._rest = rest

    def push(self, event: Event) -> tuple[Part, ...]:
        return tuple(next(self._pushes))

    def finish(self) -> tuple[Part, ...]:
        return tuple(self._rest)
