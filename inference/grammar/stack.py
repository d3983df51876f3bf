"""Stacks that are large enough for llguidance, which recurses into what a grammar nests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 16 * 2**20  # up to 5 kB are taken for each schema within another; an overflow ends the process


@contextmanager
def large_stacks() -> Iterator[None]:
    """Give the threads that are started within the block stacks of STACK_BYTES."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(usual)
