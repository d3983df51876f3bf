"""What was sent, what came back, and what was lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum


class End(StrEnum):
    """How a request ended for whoever sent it."""

    FINISHED = "finished"
    FAILED = "failed"  # it was told so, by a status or by the last event of its stream
    OVERLOADED = "refused, no room"  # 429
    UNAVAILABLE = "refused, not ready"  # 503
    CLOSED = "nobody listened"  # the connection was refused
    LEFT = "client left"
    CUT = "cut, as its process was killed"  # its connection broke when the server's end of it was killed
    LOST = "LOST"  # it was accepted, and no end was told


NEVER = "it never ended"  # the message of an answer that was waited for in vain


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request came to."""

    end: End
    text: str = ""
    message: str = ""  # of an error
    events: int = 0
    first_seconds: float = 0.0  # until the first byte of the answer
    seconds: float = 0.0  # until its end
    retry_after: str = ""
    status: int = 0  # of HTTP; 0 if none came
    port: int = 0  # of the client's end

    def if_killed(self) -> Answer:
        """Return what it is if the process that answered was killed: a broken connection is no wonder."""
        broke = self.end is End.LOST and self.message != NEVER
        return replace(self, end=End.CUT) if broke else self


@dataclass
class Ledger:
    """The account of one fault."""

    fault: str
    sent: int = 0
    ends: Counter[End] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)  # what else was seen or measured
    wrong: list[str] = field(default_factory=list)  # promises that were broken

    def add(self, *answers: Answer) -> None:
        """Count what requests came to; none of them may be lost."""
        for answer in answers:
            self.sent += 1
            self.ends[answer.end] += 1
            if answer.end is End.LOST:
                self.wrong.append(f"a request was lost after {answer.events} events: {answer.message}")

    def expect(self, holds: bool, promise: str) -> None:
        """Note a promise that doesn't hold."""
        if not holds:
            self.wrong.append(f"it isn't true that {promise}")

    def note(self, text: str) -> None:
        """Note what was seen."""
        self.notes.append(text)

    def __str__(self) -> str:
        """Return the account as lines for a person."""
        back = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()) if end is not End.LOST)
        lines = [f"{self.fault}: {self.sent} sent; {back or 'nothing came back'}; {self.ends[End.LOST]} lost"]
        lines += [f"    {note}" for note in self.notes]
        lines += [f"    WRONG: {wrong}" for wrong in self.wrong[:10]]
        return "\n".join(lines)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of them lies; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
