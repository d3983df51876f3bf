from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.gpu.packing import upload

CPU = torch.device("cpu")


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 2**31),
)
def test_arrays_arrive_as_they_are_each_aligned(shapes: list[tuple[int, bool, bool]], seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrays: list[Any] = [
        generator.integers(-(2**31), 2**31, size=(2, count) if square else count).astype(
            np.int64 if wide else np.int32
        )
        for count, wide, square in shapes
    ]
    sent = upload([*arrays], CPU)
    for array, tensor in zip(arrays, sent, strict=True):
        assert tensor.dtype == (torch.int64 if array.dtype == np.int64 else torch.int32)
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.data_ptr() % 16 == sent[0].data_ptr() % 16 or not tensor.numel()


def test_what_was_sent_is_not_what_is_written_later() -> None:
    array = np.arange(3)
    (sent,) = upload([array], CPU)
    array[:] = 9
    assert sent.tolist() == [0, 1, 2]
