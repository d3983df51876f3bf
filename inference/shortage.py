"""Which errors of a step say that memory was too short for it: the step may do if it is smaller."""

from __future__ import annotations

import errno

_KINDS = ("MemoryError", "OutOfMemoryError")  # Python's; torch's, by name: not every process has torch
_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # of a RuntimeError


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that there was no memory for what was to be computed.

    torch's allocators and libraries say so in a RuntimeError's text, but for the class that it has on GPUs.
    """
    if any(kind.__name__ in _KINDS for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError):  # a map of memory that the system doesn't give
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
