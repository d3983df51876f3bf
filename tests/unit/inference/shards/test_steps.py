from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from inference.kernels.native import Library, open_library
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack
from inference.shards.group import Group
from inference.shards.steps import Kind, Listener, Teller, Told
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.shards.groups import together

pytestmark = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")
SLOTS, PAGES = 4, 64


def sequence(index: int, length: int, adapter: int) -> Sequence:
    return Sequence(
        CoreRequest(
            id=str(index),
            prompt_ids=tuple(range(index, index + length)),
            max_new_tokens=5,
            sampling=Sampling(),
            logprobs=LogprobsMode.RAW,
            top_n_tokens=0,
            prompt_logprobs=index % 2 == 0,
            adapter=adapter,
        )
    )


@st.composite
def steps(draw: st.DrawFn) -> list[list[tuple[int, int, int, list[int]]]]:
    """Draw some steps, each with pieces: an adapter, where it starts and ends, and the sequence's blocks."""
    piece = st.tuples(
        st.integers(-1, 2),
        st.integers(0, 500),
        st.integers(1, 400),
        st.lists(st.integers(0, 99), min_size=PAGES, max_size=PAGES),
    )
    return draw(st.lists(st.lists(piece, max_size=SLOTS), min_size=1, max_size=4))


def pieces_of(drawn: list[tuple[int, int, int, list[int]]]) -> Pieces:
    table = SlotTable(SLOTS, PAGES)
    chunks = []
    for index, (adapter, start, size, blocks) in enumerate(drawn):
        each = sequence(index, start + size, adapter)
        table.enter(each)
        table.extend(each, blocks)
        chunks.append(Chunk(each, start, start + size))
    return pack(table, Decodes(), chunks)


@settings(max_examples=25, deadline=None)
@given(steps())
def test_what_is_heard_is_what_was_told(drawn: list[list[tuple[int, int, int, list[int]]]]) -> None:
    told = [pieces_of(each) for each in drawn]

    def work(group: Group, _: Library) -> list[Told]:
        if group.share.rank == 0:
            teller = Teller(group, SLOTS, PAGES)
            for number, each in enumerate(told):
                teller.step(each, tokens_only=number % 2 == 0)
                teller.idle(number)
            return []
        listener = Listener(group, SLOTS, PAGES)
        heard = []
        for each in told:
            heard.append(listener.receive())
            check(heard[-1].pieces, each)  # at once: the table is the next one's, too
            heard.append(listener.receive())
        return heard

    for heard in together(3, work)[1:]:
        assert [each.kind for each in heard] == [Kind.STEP, Kind.IDLE] * len(told)
        assert [each.tokens_only for each in heard[::2]] == [n % 2 == 0 for n in range(len(told))]
        assert [each.number for each in heard[1::2]] == list(range(len(told)))


def check(heard: Pieces | None, told: Pieces) -> None:
    assert heard is not None
    for name in ("slots", "starts", "stops", "ids", "positions", "rows"):
        assert getattr(heard, name).tolist() == getattr(told, name).tolist(), name
    assert np.array_equal(
        np.array([]) if heard.adapters is None else heard.adapters,
        np.array([]) if told.adapters is None else told.adapters,
    )
    for slot, stop in zip(told.slots.tolist(), told.stops.tolist(), strict=True):
        pages = -(-stop // 16)
        assert heard.table.blocks[slot, :pages].tolist() == told.table.blocks[slot, :pages].tolist()
