from __future__ import annotations

import numpy as np
import pytest

from inference.kv_cache.blocks import PAGE
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack
from inference.sequences.work import Work
from tests.unit.inference.paper_model import request


def entered(table: SlotTable, id: str, length: int, *, blocks: list[int], computed: int = 0) -> Sequence:
    sequence = Sequence(request(id, length, 5))
    table.enter(sequence)
    table.extend(sequence, blocks)
    table.computed[sequence.slot] = computed
    return sequence


def append(sequence: Sequence, table: SlotTable, token: int) -> None:
    table.append(np.array([sequence.slot]), np.array([token]))


def test_tokens_are_the_prompt_and_what_was_generated() -> None:
    table = SlotTable(2, 3)
    sequence = entered(table, "1", 3, blocks=[2])
    append(sequence, table, 40)
    assert sequence.ids.tolist() == [13, 14, 15, 40]
    assert (sequence.length, sequence.generated, sequence.remaining) == (4, 1, 4)


def test_sequence_that_leaves_keeps_its_tokens_and_nothing_else() -> None:
    table = SlotTable(1, 3)
    sequence = entered(table, "1", 3, blocks=[2, 0], computed=3)
    append(sequence, table, 40)
    sequence.cache, sequence.held = object(), object()
    table.leave(sequence)
    entered(table, "2", 10, blocks=[1])  # the slot is another's now
    assert sequence.ids.tolist() == [13, 14, 15, 40]
    assert (sequence.computed, sequence.blocks, sequence.slot) == (0, [], -1)
    assert (sequence.cache, sequence.held) == (None, None)


def test_slots_are_given_to_one_sequence_each() -> None:
    table = SlotTable(3, 2)
    slots = [entered(table, str(id), 2, blocks=[id]).slot for id in range(3)]
    assert sorted(slots) == [0, 1, 2]
    assert table.free == 0


def test_blocks_are_added_behind_others_and_replaced_in_their_place() -> None:
    table = SlotTable(2, 4)
    sequence = entered(table, "1", 3, blocks=[5])
    table.extend(sequence, [7, 1])
    table.replace(sequence, 1, 9)
    assert sequence.blocks == [5, 9, 1]
    assert table.blocks[sequence.slot, :3].tolist() == [5, 9, 1]
    assert table.room[sequence.slot] == 3 * PAGE


@pytest.mark.parametrize(
    ("start", "stop", "samples", "rows"),
    [(0, 5, False, 0), (5, 9, False, 0), (5, 10, True, 1), (9, 10, True, 1)],
)
def test_chunk_of_a_prompt(start: int, stop: int, samples: bool, rows: int) -> None:
    chunk = Chunk(Sequence(request("1", 10, 5)), start, stop)
    assert (chunk.samples, chunk.logit_rows) == (samples, rows)


def test_chunk_of_a_prompt_with_logprobs_has_a_row_for_each_token_until_the_first_is_generated() -> None:
    table = SlotTable(1, 1)
    sequence = Sequence(request("1", 10, 5, prompt_logprobs=True))
    table.enter(sequence)
    assert Chunk(sequence, 0, 4).logit_rows == 4
    append(sequence, table, 1)
    assert Chunk(sequence, 10, 11).logit_rows == 1


def test_step_is_packed_with_decodes_first() -> None:
    table = SlotTable(4, 3)
    first, second = (entered(table, id, 4, blocks=[int(id)], computed=4) for id in "12")
    decodes = Decodes()
    for sequence, token in ((first, 40), (second, 41)):
        append(sequence, table, token)
        decodes.add(sequence)
    prompt = entered(table, "3", 6, blocks=[0], computed=1)
    cut = entered(table, "4", 6, blocks=[3])
    pieces = pack(table, decodes, [Chunk(prompt, 1, 6), Chunk(cut, 0, 2)])
    assert pieces.slots.tolist() == [first.slot, second.slot, prompt.slot, cut.slot]
    assert pieces.starts.tolist() == [4, 4, 1, 0]
    assert pieces.stops.tolist() == [5, 5, 6, 2]
    assert pieces.ids.tolist() == [40, 41, *prompt.ids[1:].tolist(), *cut.ids[:2].tolist()]
    assert pieces.positions.tolist() == [4, 4, 1, 2, 3, 4, 5, 0, 1]
    assert pieces.rows.tolist() == [0, 1, 6]
    assert pieces.sampling == (first, second, prompt)
    assert [(c.sequence, c.start, c.stop) for c in pieces.chunks] == [
        (first, 4, 5),
        (second, 4, 5),
        (prompt, 1, 6),
        (cut, 0, 2),
    ]


def test_decodes_are_the_same_object_until_one_comes_or_goes() -> None:
    table = SlotTable(3, 1)
    first, second = (entered(table, id, 4, blocks=[0]) for id in "12")
    decodes = Decodes()
    decodes.add(first)
    before = decodes.sequences
    decodes.add(first)
    decodes.discard(second)
    assert decodes.sequences is before
    decodes.add(second)
    assert told(decodes) == ([first, second], [first.slot, second.slot], [0, 1])
    decodes.discard(first)
    assert told(decodes) == ([second], [second.slot], [0])
    decodes.discard(second)
    assert told(decodes) == ([], [], [])


def told(decodes: Decodes) -> tuple[list[Sequence], list[int], list[int]]:
    return list(decodes.sequences), decodes.slots.tolist(), decodes.rows.tolist()


def test_work_gives_tokens_to_all_but_the_late_and_to_the_resumed() -> None:
    table = SlotTable(4, 1)
    first, second, prompt, resumed = (entered(table, id, 4, blocks=[0]) for id in "1234")
    decodes = Decodes()
    decodes.add(first)
    decodes.add(second)
    pieces = pack(table, decodes, [Chunk(prompt, 0, 4)])
    work = Work(pieces, frozenset({second}), (resumed,))
    assert (work.sequences, work.first) == ((first, prompt, resumed), 1)
    assert set(work.touched) == {first, second, prompt, resumed}
