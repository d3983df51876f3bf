"""How requests fail, in words of ours, and what of it stands in the log.

What a request's own grammar says may quote its sender, and so may an exception that somebody else raised.
Those words are told to the sender alone; the log has them with --log-prompts.
"""

from __future__ import annotations

import logging
import re

from inference.errors import GenerationFailed
from inference.types import CoreFailure

STOPPED = "The engine stopped"
STOPPED_BEFORE = "The engine has stopped"

_ALONE = "; others are not affected"
_TOGETHER = ", and on those beside it"
_BLAMED = "The engine failed on request {id}{others} ({kind}: the server's log says more)"
_OURS = re.compile(
    "|".join(
        [
            *map(re.escape, (STOPPED, STOPPED_BEFORE)),
            rf"The engine failed on request \S+(?:{_ALONE}|{_TOGETHER}) \(\w+: the server's log says more\)",
        ]
    )
)

log = logging.getLogger(__name__)


def blamed(request_id: str, kind: str, *, alone: bool) -> str:
    """Return what a request is told that made a step fail, by an exception of this kind."""
    return _BLAMED.format(id=request_id, others=_ALONE if alone else _TOGETHER, kind=kind)


def log_failure(failure: CoreFailure) -> None:
    """Log that a request has failed; why is withheld, as exceptions are, unless the words are ours."""
    if not failure.own and _OURS.fullmatch(failure.message):
        log.error("request %s failed: %s", failure.id, failure.message)
    else:
        log.error("request %s failed", failure.id, exc_info=GenerationFailed(failure.message))
