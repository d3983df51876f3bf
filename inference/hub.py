"""Why something can't be had from the hub, where that is neither the network's fault nor a wrong name."""

from __future__ import annotations

import errno
from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_ELSEWHERE = "name another folder by --huggingface-hub-cache"


def trouble(error: BaseException) -> str | None:
    """Return what went wrong, and what to do; None where the hub wasn't reached, or who knows why."""
    for each in _causes(error):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if isinstance(status, int):
            return _refused(status)
        if isinstance(each, OSError) and each.errno in _FULL:
            return f"no space is left for the hub's cache: make some, or {_ELSEWHERE}"
        if isinstance(each, OSError) and each.errno in _FORBIDDEN:
            where = f"`{each.filename}`" if each.filename else "the hub's cache"
            return f"{where} can't be written ({each.strerror}): allow it, or {_ELSEWHERE}"
    return None


def _refused(status: int) -> str | None:
    if status == 401:
        return "the hub doesn't take the token (401): set HF_TOKEN to one that is valid, or to none"
    if status == 403:
        return "the hub refuses it to this token (403): ask for access, or set HF_TOKEN to another"
    if status == 429:
        return "the hub has had too many requests from here (429): try again later, or set HF_TOKEN"
    if status >= 500:
        return f"the hub answers with an error of its own ({status}): try again later"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
