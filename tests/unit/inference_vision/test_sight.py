"""What a sequence sees: which rows stand where, what its blocks are known by, and positions behind images."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from inference.kv_cache.blocks import PAGE  # noqa: E402
from inference.sequences.seen import limits_in, seen_in  # noqa: E402
from inference.sequences.sight import ImageRows, Sight  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402
from inference.types import CoreRequest, LogprobsMode, Sampling  # noqa: E402

IMAGE = 9  # the token that stands for a row


def image(first: int, count: int) -> ImageRows:
    """Return rows that tell themselves: first, first + 1, ...."""
    rows = torch.arange(first, first + count, dtype=torch.float32)[:, None].repeat(1, 4)
    return ImageRows(rows, -rows, {})


def sight_of(
    ids: list[int], sizes: list[int], positions: np.ndarray | None = None, *, two_way: bool = False
) -> Sight:
    starts = np.cumsum([0, *sizes])[:-1]
    images = [image(int(start), size) for start, size in zip(starts, sizes, strict=True)]
    places = (np.array(ids) == IMAGE).nonzero()[0]
    keys = [b"k%d" % at for at in range(len(sizes))]
    return Sight(keys, images, places, positions, two_way=two_way)


def running(ids: list[int], sight: Sight | None, table: SlotTable) -> Sequence:
    request = CoreRequest(
        id="a",
        prompt_ids=tuple(ids),
        max_new_tokens=4,
        sampling=Sampling(),
        logprobs=LogprobsMode.NONE,
        top_n_tokens=0,
        prompt_logprobs=False,
    )
    sequence = Sequence(request, sight=sight)
    table.enter(sequence)
    table.extend(sequence, list(range(-(-len(ids) // PAGE) + 1)))
    return sequence


@given(
    parts=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 200), max_size=5),
)
def test_pieces_of_any_size_have_each_row_in_its_place(parts: list[tuple[int, int]], cuts: list[int]) -> None:
    ids = [each for words, rows in parts for each in [1] * words + [IMAGE] * rows] + [1]
    table = SlotTable(slots=2, pages=20)
    other = running([2, 2, 2], None, table)
    sequence = running(ids, sight_of(ids, [rows for _, rows in parts]), table)
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    found: dict[int, float] = {}
    for start, stop in pairwise(bounds):
        pieces = pack(table, Decodes(), [Chunk(other, 0, 2), Chunk(sequence, start, stop)])
        seen = seen_in(pieces)
        if seen is not None and seen.rows is not None:
            assert (pieces.ids[seen.at] == IMAGE).all()
            found |= dict(zip(pieces.positions[seen.at].tolist(), seen.rows[:, 0].tolist(), strict=True))
    expected = {
        place: float(row) for row, place in enumerate(at for at, each in enumerate(ids) if each == IMAGE)
    }
    assert found == expected


def test_step_without_images_is_blind() -> None:
    table = SlotTable(slots=2, pages=4)
    ids = [1, IMAGE, IMAGE, 1]
    text, seeing = running([1, 2, 3], None, table), running(ids, sight_of(ids, [2]), table)
    assert seen_in(pack(table, Decodes(), [Chunk(text, 0, 3)])) is None
    assert seen_in(pack(table, Decodes(), [Chunk(seeing, 3, 4)])) is None
    table.leave(seeing)
    assert table.sights == {}


def test_rows_are_those_for_the_language_model_where_asked() -> None:
    table = SlotTable(slots=1, pages=4)
    ids = [1, IMAGE, IMAGE, 1]
    sequence = running(ids, sight_of(ids, [2]), table)
    seen = seen_in(pack(table, Decodes(), [Chunk(sequence, 0, 4)]), embedded=True)
    assert seen is not None
    assert seen.rows is not None
    assert seen.rows[:, 0].tolist() == [-0.0, -1.0]


def test_positions_go_on_behind_images_as_the_model_counts() -> None:
    positions = np.array([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])
    ids = [1, IMAGE, IMAGE, IMAGE, IMAGE, 1]
    sight = sight_of(ids, [4], positions)
    assert sight.shift == -2
    assert sight.rotary(4, 9).tolist() == [[1, 3, 4, 5, 6], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6]]
    table = SlotTable(slots=2, pages=4)
    text, seeing = running([1, 2, 3], None, table), running(ids, sight, table)
    seen = seen_in(pack(table, Decodes(), [Chunk(text, 1, 3), Chunk(seeing, 3, 6)]))
    assert seen is not None
    assert seen.positions is not None
    assert seen.positions.tolist() == [[1, 2, 1, 1, 3], [1, 2, 2, 2, 3], [1, 2, 1, 2, 3]]


def test_blocks_are_known_by_the_images_in_them() -> None:
    ids = [1] * 10 + [IMAGE] * 30 + [1] * 30
    sight = sight_of(ids, [10, 20])
    assert [sight.salt(block) for block in range(5)] == [b"k0", b"k0k1", b"k1", b"", b""]


@given(
    parts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 60), max_size=5),
)
def test_rows_side_by_side_see_each_other_and_are_not_parted(
    parts: list[tuple[int, int]], cuts: list[int]
) -> None:
    ids = [each for words, rows in parts for each in [1] * words + [IMAGE] * rows] + [1]
    table = SlotTable(slots=2, pages=20)
    sight = sight_of(ids, [rows for _, rows in parts], two_way=True)
    other, sequence = running([2, 2, 2], None, table), running(ids, sight, table)
    expected = [
        next((end for end in range(at, len(ids)) if ids[end] != IMAGE), 0) if id == IMAGE else at + 1
        for at, id in enumerate(ids)
    ]
    start = 0
    while start < len(ids):
        wanted = min(start + (cuts.pop() if cuts else len(ids)), len(ids))
        stop = sight.whole(start, wanted)
        assert stop > start
        assert stop == len(ids) or not ids[stop - 1] == ids[stop] == IMAGE
        assert stop == wanted or ids[wanted - 1] == ids[wanted] == IMAGE
        found = limits_in(pack(table, Decodes(), [Chunk(other, 0, 3), Chunk(sequence, start, stop)]))
        assert found is not None
        assert found.tolist() == [1, 2, 3, *expected[start:stop]]
        again = limits_in(pack(table, Decodes(), [Chunk(sequence, stop - 1, stop)]))
        assert again is not None
        assert again.tolist() == expected[stop - 1 : stop]
        start = stop


def test_rows_that_see_what_is_before_them_alone_may_be_parted() -> None:
    table = SlotTable(slots=1, pages=2)
    sight = sight_of([1, IMAGE, IMAGE, 1], [2])
    sequence = running([1, IMAGE, IMAGE, 1], sight, table)
    assert sight.whole(0, 2) == 2
    assert limits_in(pack(table, Decodes(), [Chunk(sequence, 0, 2)])) is None


def test_blocks_are_known_by_the_images_that_their_rows_see() -> None:
    ids = [1] * 4 + [IMAGE] * 20 + [1] * 10
    one_way, two_way = (sight_of(ids, [8, 12], two_way=both) for both in (False, True))
    assert [one_way.salt(block) for block in range(3)] == [b"k0k1", b"k1", b""]
    assert [two_way.salt(block) for block in range(3)] == [b"k0k1", b"k0k1", b""]


def test_prompt_for_other_images_is_no_sight() -> None:
    with pytest.raises(ValueError, match="2 of its tokens stand for images' rows, and there are 3"):
        sight_of([1, IMAGE, IMAGE], [3])
