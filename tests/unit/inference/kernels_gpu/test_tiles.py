from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inference.kernels.gpu.tiles import (
    MOST_SPLITS,
    SHARED_BYTES,
    choose_tiles,
    deterministic_tiles,
    fitted,
    key_splits,
    power_of_two,
    programs_wanted,
    query_tile,
    rows_of,
    shared_bytes,
)

GROUPS = st.integers(1, 128)
DIMS = st.integers(16, 512)
SIZES = st.sampled_from([2, 4])


@given(GROUPS, st.integers(1, 8), st.integers(1, 9000), DIMS, SIZES, st.booleans())
def test_every_choice_fits_a_processor(
    group: int, kv_heads: int, longest: int, dim: int, itemsize: int, deterministic: bool
) -> None:
    tile = query_tile(
        group * kv_heads, kv_heads, longest, dim=dim, itemsize=itemsize, deterministic=deterministic
    )
    fixed = deterministic_tiles(dim, itemsize)
    tiles = fixed if deterministic else choose_tiles(dim, itemsize, decodes=longest == 1)
    rows = rows_of(tile, group)
    assert tile * group <= rows <= max(128, 2 * group)
    assume(rows * power_of_two(dim) <= 128 * 256)
    held = fitted(tiles, rows, dim, dim, itemsize)
    assert shared_bytes(rows, held, dim, dim, itemsize) <= SHARED_BYTES
    if rows <= 128 and (group <= 32 or dim <= 128):
        assert held == tiles


@given(GROUPS, DIMS, SIZES, st.integers(1, 9000), st.integers(1, 9000))
def test_the_deterministic_tile_is_the_same_for_every_step(
    group: int, dim: int, itemsize: int, one: int, other: int
) -> None:
    tiles = {query_tile(group, 1, n, dim=dim, itemsize=itemsize, deterministic=True) for n in (one, other)}
    assert 1 == len(tiles)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 200))
def test_splits_are_a_power_of_two_and_no_more_than_are_wanted(
    sequences: int, kv_heads: int, processors: int
) -> None:
    splits = key_splits(sequences, kv_heads, processors)
    assert splits == 1 << (splits.bit_length() - 1) <= MOST_SPLITS
    assert 1 == splits or sequences * kv_heads * splits <= programs_wanted(128, 2) * processors


@pytest.mark.parametrize(
    ("dim", "itemsize", "wanted"),
    [(64, 2, 16), (80, 2, 8), (128, 2, 8), (256, 2, 4), (512, 2, 2), (64, 4, 8)],
)
def test_processors_get_twice_the_programs_that_they_have_room_for(
    dim: int, itemsize: int, wanted: int
) -> None:
    assert wanted == programs_wanted(dim, itemsize)
    assert key_splits(1, 1, 2, dim=dim, itemsize=itemsize) == min(2 * wanted, MOST_SPLITS)


def test_more_heads_than_a_processor_holds_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"128 heads of 512 numbers .* --native-kernels false"):
        fitted(choose_tiles(512, 2, decodes=True), 128, 512, 512, 2)


def test_numbers_of_another_size_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"2 or 4 bytes, not of 8: start with another --dtype"):
        deterministic_tiles(64, 8)


def test_heads_too_wide_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"heads of 513 numbers .* 512 .* --native-kernels false"):
        choose_tiles(513, 2, decodes=True)
