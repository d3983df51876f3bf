from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.ipc.framing import pack, unpack
from inference.ipc.messages import FROM_ENGINE, Batch, More
from inference.prompt_tops import PromptTops, TopTokens

PAIR = st.tuples(st.integers(0, 2**31 - 1), st.floats(max_value=0, min_value=-(2.0**99), width=32))
ROWS = st.lists(st.lists(PAIR, max_size=4).map(tuple), max_size=6)


@given(ROWS, ROWS)
def test_places_come_back_as_they_were_put_in_also_joined(
    first: list[TopTokens], then: list[TopTokens]
) -> None:
    whole = PromptTops.joined([PromptTops.of(first), PromptTops.of(then)])
    assert whole == PromptTops.of([*first, *then])
    assert whole.pairs() == (*first, *then)
    assert len(whole) == len(first) + len(then)


@given(ROWS)
def test_they_cross_between_processes_as_they_are(rows: list[TopTokens]) -> None:
    tops = PromptTops.of(rows)
    sent = Batch([0], [1], [0.0], [More(0, (), None, 0.0, 0, (None,), tops)])
    assert unpack(FROM_ENGINE, pack(sent)[4:]).more[0].prompt_top == tops


def test_a_hundred_thousand_take_eight_bytes_each_on_the_way() -> None:
    tops = PromptTops.of([tuple((token, -1.0) for token in range(512))] * 200)
    assert len(pack(tops)) < 8.1 * 512 * 200
