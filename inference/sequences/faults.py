"""By whose work a step has failed, and what is lost with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inference.failures import blamed
from inference.sequences.state import Sequence
from inference.shortage import is_shortage


class RequestFault(Exception):
    """The work for one request has failed, as its cause says; a step without it may go well."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(f"The work for request {sequence.id} has failed")
        self.sequence = sequence


class StepLost(Exception):
    """A step has failed, and what is left of it isn't known: nothing of it can be computed again."""


class EngineLost(Exception):
    """Nothing can be computed any more, for nobody: the loop ends, and a new engine may be begun."""


@contextmanager
def working_for(sequence: Sequence) -> Iterator[None]:
    """Have whatever is raised within be the fault of one request, but for want of memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (RequestFault, StepLost)) or is_shortage(error):
            raise
        raise RequestFault(sequence) from error


def explain(id: str, error: BaseException, *, alone: bool = True) -> str:
    """Return what a request is told: what failed, and where to read more; nothing of how it is computed.

    `alone`: its own work failed, and not the step as a whole.
    """
    said = error.__cause__ if isinstance(error, (RequestFault, StepLost)) and error.__cause__ else error
    return blamed(id, type(said).__name__, alone=alone)
