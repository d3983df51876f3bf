"""A reader of Dockerfiles."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Stage:
    """What one FROM begins."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def every(self, keyword: str) -> list[str]:
        """Return the arguments of all instructions of one kind."""
        return [arguments for word, arguments in self.instructions if word == keyword]

    def environment(self) -> dict[str, str]:
        """Return what its ENV instructions set."""
        pairs = [pair for arguments in self.every("ENV") for pair in arguments.split()]
        return dict(pair.split("=", 1) for pair in pairs)

    def listed(self, keyword: str) -> list[str]:
        """Return the words of the last instruction of one kind, which must be a JSON list."""
        words: list[str] = json.loads(self.every(keyword)[-1])
        return words


def read(path: Path) -> dict[str, Stage]:
    """Return the stages by name, each with what it inherits from an earlier one."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        keyword, _, arguments = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = arguments.partition(" AS ")
            inherited = stages[base].instructions if base in stages else []
            current = stages[name] = Stage(name, base, list(inherited))
        elif keyword and current is not None:
            current.instructions.append((keyword, arguments.strip()))
    return stages
