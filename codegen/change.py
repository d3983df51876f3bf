"""One difference between two contracts, how much it weighs, and the version that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """What a difference asks of a semantic version."""

    PATCH = 1  # nothing that a client sends or reads becomes possible or impossible
    MINOR = 2  # something new, and all that was goes on
    MAJOR = 3  # what worked may not work any more; also what can't be decided


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A difference under a key that stays the same as long as the difference does."""

    key: str  # what CHANGES.md announces it by
    level: Level
    message: str

    def __str__(self) -> str:
        return f"{self.level.name.lower():5} {self.key}: {self.message}"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A semantic version without suffixes."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `1.2.3`; ValueError for anything else."""
        if not re.fullmatch(r"\d+\.\d+\.\d+", text):
            raise ValueError(f"{text!r} is no version: write three numbers, as 1.2.3")
        return cls(*map(int, text.split(".")))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def after(self, level: Level | None) -> Version:
        """Return the lowest version that may hold such a change.

        Before 1.0.0 a place further right counts, as package managers read `^0.2.3`: what breaks raises the
        second number, anything else the third.
        """
        if level is None:
            return self
        if level is Level.MAJOR:
            return Version(self.major + 1, 0, 0) if self.major else Version(0, self.minor + 1, 0)
        if level is Level.MINOR and self.major:
            return Version(self.major, self.minor + 1, 0)
        return Version(self.major, self.minor, self.patch + 1)


def heaviest(changes: Iterable[Change]) -> Level | None:
    """Return the level that a version with all these changes needs; None without changes."""
    return max((change.level for change in changes), default=None)
