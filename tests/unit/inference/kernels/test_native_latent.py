"""Attention over latents in C: keys whose first numbers are the values, which are kept once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import dtype as Dtype

from inference.kernels.native import Library
from inference.kernels.native_attention import NativeCacheLayer, arrays_of
from inference.kernels.reference import Attention
from inference.models.paged import LayerShape
from tests.unit.inference.paged_attention import (
    FORMS,
    ISAS,
    LIBRARIES,
    Tokens,
    built,
    every_library,
    expected,
    latent_tokens,
    run,
    steps_of,
    whole,
)

torch.set_num_threads(1)
pytestmark = built
SPLIT = 256  # of attention.h
# Heads, numbers of a key and of a value: of DeepSeek-V2-Lite, MiniCPM3, a small one; odd ones; no vector's
DIMS = [(16, 576, 512), (40, 288, 256), (4, 40, 32), (5, 71, 53), (3, 9, 7), (70, 24, 16)]


def narrowed(sequence: Tokens) -> Tokens:
    """Return what a cache in bfloat16 holds of a sequence."""
    key = sequence.key.bfloat16().float()
    return Tokens(sequence.query, key, key[..., : sequence.value.shape[2]])


@every_library
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_agrees_with_float64(library: Library, dims: tuple[int, int, int], dtype: Dtype) -> None:
    sequence, how = latent_tokens(SPLIT + 37, *dims), Attention(scaling=dims[1] ** -0.5, latent=True)
    (found,) = run(library, [sequence], whole([sequence.length]), how, dtype=dtype)
    held = sequence if dtype == torch.float32 else narrowed(sequence)
    torch.testing.assert_close(found.double(), expected(held, how), atol=2e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_it_gives_the_bits_that_values_beside_keys_give(data: st.DataObject) -> None:
    """However a step is put together: what is read is the same, and so is what is computed of it."""
    dims = data.draw(st.sampled_from(DIMS))
    lengths = data.draw(st.lists(st.integers(1, SPLIT + 40), min_size=1, max_size=3))
    window = data.draw(st.sampled_from([None, 1, 17, SPLIT]))
    sequences = [latent_tokens(length, *dims, seed=i) for i, length in enumerate(lengths)]
    library = LIBRARIES[data.draw(st.sampled_from(ISAS)), data.draw(st.sampled_from([1, 3]))]
    form = data.draw(st.sampled_from(FORMS))
    steps, seed = data.draw(steps_of(lengths)), data.draw(st.integers(0, 9))
    how, beside = (Attention(scaling=0.1, window=window, latent=each) for each in (True, False))
    found = run(library, sequences, steps, how, seed, *form)
    for sequence, rows in zip(sequences, found, strict=True):
        (alone,) = run(library, [sequence], whole([sequence.length]), beside, 0, *form)
        assert torch.equal(alone, rows)


@pytest.mark.parametrize(("dtype", "rounded"), FORMS)
def test_a_nan_that_a_token_does_not_see_is_nothing_to_it(dtype: Dtype, rounded: bool) -> None:
    sequence, how = latent_tokens(40, 3, 64, 48), Attention(scaling=0.25, window=7, latent=True)
    key = sequence.key.clone()
    key[20:22] = torch.nan
    sick = Tokens(sequence.query, key, key[..., :48])
    for library in LIBRARIES.values():
        well, found = (
            run(library, [each], whole([40]), how, 0, dtype, rounded)[0] for each in (sequence, sick)
        )
        assert torch.equal(found[:20], well[:20])
        assert found[20:28].isnan().all()
        assert torch.equal(found[28:], well[28:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_takes_the_memory_of_its_key_alone(dtype: Dtype) -> None:
    shape = LayerShape(1, 576, 512, latent=True)
    layer = NativeCacheLayer(LIBRARIES[ISAS[0], 1], shape, 10, dtype)
    assert sum(array.nbytes for array in arrays_of([layer])) == 10 * 16 * 576 * dtype.itemsize
    assert shape.elements == 576
