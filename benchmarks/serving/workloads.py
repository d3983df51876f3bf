"""What the load clients ask for: prompts of exactly so many tokens, answers of exactly so many."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

SEED = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A closed loop: each client sends its next request when the one before has ended."""

    name: str
    clients: int
    requests: int
    shared: int = 0  # tokens that all prompts begin with
    own: int = 128  # tokens that no two prompts have in common
    owns: tuple[int, ...] = ()  # as many in place of `own`, prompt by prompt, and again from the first
    output: int = 64  # tokens, never fewer: the end-of-sequence token ends no text
    prefix_of: str = ""  # the workload whose shared tokens these are, too, if it ran before
    own_of: str = ""  # and the one whose own tokens: then the prompts are the same ones

    @property
    def own_lengths(self) -> list[int]:
        """Return how many tokens of each prompt no other has."""
        owns = self.owns or (self.own,)
        return [owns[at % len(owns)] for at in range(self.requests)]

    @property
    def prompts(self) -> set[int]:
        """Return how many tokens prompts have."""
        return {self.shared + own for own in self.own_lengths}

    @property
    def tokens(self) -> int:
        """Return the tokens that are generated."""
        return self.requests * self.output


MIX = (41, 700, 20, 128, 60, 900, 30, 250, 90, 500, 25, 150)  # short prompts beside long ones
_PREFIX = Workload(name="prefix8", clients=8, requests=16, shared=1024, own=32, output=32)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="c1", clients=1, requests=4),
        Workload(name="c8", clients=8, requests=24),
        Workload(name="c32", clients=32, requests=64),
        Workload(name="mix8", clients=8, requests=24, owns=MIX, output=32),
        _PREFIX,
        replace(_PREFIX, name="again8", prefix_of="prefix8"),
        replace(_PREFIX, name="repeat8", prefix_of="prefix8", own_of="prefix8"),
    )
}
AGAIN = ("again8", "repeat8")  # what shows how long a prefix is remembered


def quick(workload: Workload) -> Workload:
    """Return the same with the fewest requests that still show whether everything works."""
    return replace(workload, requests=max(1, workload.clients), output=min(16, workload.output))


class Words:
    """Words that are one token each, and stay so when they are put together in any order."""

    def __init__(self, model: Path) -> None:
        self._words: list[str] = json.loads((model / "words.json").read_text())["words"]

    def prompts(self, workload: Workload, repetition: int) -> list[str]:
        """Return the prompts of a repetition: the same for each server, new in each repetition."""
        prefix = f"{SEED}/{workload.prefix_of or workload.name}/{repetition}/shared"
        own = random.Random(f"{SEED}/{workload.own_of or workload.name}/{repetition}/own")
        shared = self._text(random.Random(prefix), workload.shared)
        return [shared + self._text(own, length) for length in workload.own_lengths]

    def warm_up(self, workload: Workload) -> list[str]:
        """Return a few prompts that no repetition has."""
        random_ = random.Random(f"{SEED}/{workload.name}/warm up")
        return [self._text(random_, own) for own in workload.own_lengths[: min(workload.clients, 4)]]

    def _text(self, random_: random.Random, count: int) -> str:
        return "".join(random_.choice(self._words) for _ in range(count))
