from __future__ import annotations

import threading

from inference.grammar.stack import STACK_BYTES, large_stacks


def test_only_threads_of_the_block_have_large_stacks() -> None:
    usual = threading.stack_size()
    with large_stacks():
        assert threading.stack_size() == STACK_BYTES
    assert threading.stack_size() == usual
