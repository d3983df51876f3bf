"""What a soak's faults explain: an end, or a logged error, that none of them may bring about is wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.soak_faults import Cause, Fault
from tests.faults.ledger import Answer, End

AFTER_SECONDS = 3.0  # of a fault's end, in which what it brought about is still told
NO_FAULT = "no fault"
_INVALID = 422
_LOST_WORK = (200, 424)  # statuses of what failed by a fault: told in its stream, or before that


@dataclass(slots=True)
class Window:
    """The time of what goes wrong, in seconds of `time.time()`."""

    cause: Cause
    began: float
    ended: float = math.inf  # it goes on

    def holds(self, at: float) -> bool:
        """Return whether a moment lies in it, or shortly after."""
        return self.began <= at <= self.ended + AFTER_SECONDS


@dataclass(slots=True)
class Judge:
    """Holds each end against the faults of its moment."""

    windows: list[Window] = field(default_factory=list)
    lost_by_fault: Counter[str] = field(default_factory=Counter)

    def open(self, cause: Cause, began: float) -> Window:
        """Note that something begins to go wrong; the caller sets its end."""
        self.windows.append(Window(cause, began))
        return self.windows[-1]

    def wrong(self, kind: str, answer: Answer, at: float) -> str:
        """Return what is wrong with an answer to a kind of request, which came at that time, or ""."""
        during = [window.cause for window in self.windows if window.holds(at)]
        if answer.end is End.LOST:
            names = [fault.name for fault in during if End.LOST in fault.ends]
            self.lost_by_fault[" or ".join(dict.fromkeys(names)) or NO_FAULT] += 1
        if expected(kind, answer) or any(_among(fault.ends, answer) for fault in during):
            return ""
        names = [fault.name for fault in during] or [NO_FAULT]
        return f"{kind} during {', '.join(names)}: {_told(answer)}"

    def wrong_of_fault(self, fault: Fault, window: Window, answers: list[Answer]) -> Iterator[str]:
        """Yield what is wrong with the answers to a fault's own requests."""
        others = [each.cause for each in self.windows if each is not window and each.holds(window.began)]
        for answer in answers:
            if not any(_among(ends, answer) for ends in (fault.own, *(each.ends for each in others))):
                yield f"own request of {fault.name}: {_told(answer)}"

    def wrong_in_log(self, lines: list[str]) -> Iterator[str]:
        """Yield errors of the log that came at times at which no fault logs any."""
        for line in lines:
            stamp, _, rest = line.partition(" ")
            try:
                at = datetime.fromisoformat(stamp).timestamp()
            except ValueError:
                continue  # a traceback's; its first line has the time
            known = any(window.cause.logs and window.holds(at) for window in self.windows)
            if "ERROR" in rest[:12] and not known:
                yield f"log: {line.strip()}"


def expected(kind: str, answer: Answer) -> bool:
    """Return whether a request of a kind comes to that without any fault."""
    if kind == "invalid":
        return answer.end is End.FAILED and answer.status == _INVALID
    return answer.end is End.FINISHED or (kind == "leaves" and answer.end is End.LEFT)


def _among(ends: frozenset[End], answer: Answer) -> bool:
    return answer.end in ends and (answer.end is not End.FAILED or answer.status in _LOST_WORK)


def _told(answer: Answer) -> str:
    return f"{answer.end} ({answer.status}): {answer.message}"
