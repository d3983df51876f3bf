from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.gpu.packing import pack_batch, upload
from inference.sequences.sight import ImageRows, Sight
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack
from inference.types import CoreRequest, LogprobsMode, Sampling

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


@pytest.mark.parametrize("plain", [True, False])
def test_rows_of_images_cross_once_where_the_language_model_is_given_the_same(plain: bool) -> None:
    def entered(name: str, ids: tuple[int, ...], images: list[ImageRows]) -> Sequence:
        request = CoreRequest(
            id=name,
            prompt_ids=ids,
            max_new_tokens=4,
            sampling=Sampling(),
            logprobs=LogprobsMode.NONE,
            top_n_tokens=0,
            prompt_logprobs=False,
        )
        places = (np.array(ids) == 9).nonzero()[0]
        sequence = Sequence(request, sight=Sight([b"k"] * len(images), images, places) if images else None)
        table.enter(sequence)
        table.extend(sequence, [sequence.slot])
        return sequence

    table = SlotTable(slots=3, pages=2)
    one, two = torch.ones(2, 4), torch.full((1, 4), 2.0)
    first = entered("a", (1, 9, 9, 1), [ImageRows(one, one, {})])
    text = entered("b", (1, 2, 3), [])
    second = entered("c", (9, 1), [ImageRows(two, two if plain else -two, {})])
    pieces = pack(table, Decodes(), [Chunk(first, 0, 4), Chunk(text, 0, 3), Chunk(second, 0, 2)])
    images = pack_batch(pieces, torch.zeros(3, 2, dtype=torch.int32), tile=16, splits=1).images
    assert images is not None
    assert images.at.tolist() == [1, 2, 7]
    assert images.rows[:, 0].tolist() == [1.0, 1.0, 2.0]
    assert images.embedded[:, 0].tolist() == [1.0, 1.0, 2.0 if plain else -2.0]
    assert (images.embedded is images.rows) is plain
