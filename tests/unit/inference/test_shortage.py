from __future__ import annotations

import errno

import pytest

from inference.shortage import is_shortage


class OutOfMemoryError(RuntimeError):
    """torch's, by name."""


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("out of memory"), False),
        (RuntimeError("the shapes don't fit"), False),
    ],
)
def test_want_of_memory_is_told_from_other_faults(error: Exception, short: bool) -> None:
    assert is_shortage(error) is short
