"""Parts of sentences: how many there are of something, and why something that was tried can't be done."""

from __future__ import annotations

import traceback

_OURS = "inference"
_UNSAID = (LookupError, AttributeError, ArithmeticError)  # whose words are a name alone, or nobody's


def told(error: BaseException) -> str:
    """Return an exception's words on one line: our own as they are, all others behind their kind.

    Others' can be anything, such as the name that wasn't found, which says little without the kind.
    """
    words = " ".join(str(error).split())
    raised = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = bool(raised) and raised[-1].partition(".")[0] == _OURS
    if words and ours and not isinstance(error, _UNSAID) and type(error) is not RuntimeError:  # torch's
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def counted(count: int, what: str) -> str:
    """Return how many there are of something, by its name in the singular."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
