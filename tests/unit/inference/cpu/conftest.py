"""The C extension's library, as the tests of what is computed on CPUs share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inference.kernels.native import Library


@pytest.fixture(scope="module")
def library() -> Library:
    """Return one of two threads."""
    torch = pytest.importorskip("torch")
    from inference.kernels.native import open_library

    torch.set_num_threads(1)
    found = open_library(threads=2)
    if found is None:
        pytest.skip("the extension isn't built")
    return found
