"""What readers of arguments have in common: a text that comes in pieces is read step by step, by place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

from inference.tools.formats import TOKEN

Where = TypeVar("Where", bound=Enum)


class StepReader(ABC, Generic[Where]):
    """Makes a JSON object of the arguments of one call; what is sure of its text is given as it comes.

    A step takes what it has read off `_held`, and returns what that adds, or None to wait for more.
    """

    def __init__(self, place: Where) -> None:
        """`place` is where arguments begin."""
        self._place = place
        self._held = ""  # what hasn't been read
        self._begun = False
        self.complete = False

    @abstractmethod
    def _steps(self) -> Mapping[Where, Callable[[], str | None]]:
        """Return the step of each place."""

    def read(self, text: str) -> tuple[str, str]:
        """Return what a piece adds to the object, and what follows the arguments."""
        added = [] if self._begun else ["{"]
        self._begun = True
        self._held += text
        steps = self._steps()
        while not self.complete:
            more = steps[self._place]()
            if more is None:
                return "".join(added), ""
            added.append(more)
        rest, self._held = self._held.replace(TOKEN, ""), ""
        return "".join(added), rest
