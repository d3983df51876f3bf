from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from inference.gpu.batch import query_blocks


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 9))
def test_tiles_cover_each_query_once_in_order(sizes: list[int], tile: int) -> None:
    owners, firsts = query_blocks(np.array(sizes, dtype=np.int64), tile).tolist()
    covered = [
        (owner, query)
        for owner, first in zip(owners, firsts, strict=True)
        for query in range(first, min(first + tile, sizes[owner]))
    ]
    assert covered == [(owner, query) for owner, size in enumerate(sizes) for query in range(size)]
    assert len(owners) == sum(-(-size // tile) for size in sizes)
