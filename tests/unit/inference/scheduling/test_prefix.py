from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from itertools import count

import numpy as np
import pytest

from inference.kv_cache.blocks import PAGE, BlockPool
from inference.kv_cache.snapshots import Move, Snapshots
from inference.scheduling.prefix import PrefixCache
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack
from tests.unit.inference.paper_model import request


def shared(id: str, length: int, *, salt: str = "", adapter: int = -1) -> Sequence:
    return Sequence(request(id, length, 40, prefix=10 * PAGE, salt=salt, adapter=adapter))


class Engine:
    """A pool, a table and a prefix cache, and what the scheduler does with them."""

    def __init__(self, snapshots: Snapshots | None = None) -> None:
        self.pool = BlockPool(20)
        self.table = SlotTable(4, 10)
        self.prefix = PrefixCache(self.pool, self.table, snapshots)

    def run(self, sequence: Sequence, computed: int) -> Sequence:
        """Let a sequence in and compute some of its tokens."""
        self.table.enter(sequence)
        self.table.extend(sequence, self.pool.take(-(-sequence.length // PAGE)))
        self.prefix.begin(sequence)
        self.compute(sequence, computed)
        return sequence

    def compute(self, sequence: Sequence, computed: int) -> None:
        self.table.computed[sequence.slot] = computed
        self.prefix.publish(sequence)


def test_digests_are_a_chain_of_the_tokens_seeded_by_the_salt() -> None:
    engine = Engine()
    sequence = engine.run(shared("1", 2 * PAGE + 3, salt="s"), 2 * PAGE)
    digest = blake2b(b"s", digest_size=16, person=b"salt").digest()
    for block in range(2):
        tokens = np.array(sequence.request.prompt_ids[block * PAGE : (block + 1) * PAGE], dtype="<i8")
        digest = blake2b(digest + tokens.tobytes(), digest_size=16).digest()
        assert sequence.digests[block] == digest
        assert engine.pool.find([digest]) == [sequence.blocks[block]]


@pytest.mark.parametrize("salt", ["", "s"])
def test_an_adapters_blocks_are_nobody_elses(salt: str) -> None:
    engine = Engine()
    first = engine.run(shared("1", 4 * PAGE, salt=salt, adapter=1), 4 * PAGE)
    for other in (-1, 0, 2):
        assert engine.prefix.find(shared("2", 4 * PAGE, salt=salt, adapter=other)) == []
    assert engine.prefix.find(shared("2", 4 * PAGE, salt=salt, adapter=1)) == first.blocks[:3]


def test_only_full_and_computed_blocks_are_found() -> None:
    engine = Engine()
    first = engine.run(shared("1", 4 * PAGE), 2 * PAGE - 1)
    other = shared("2", 4 * PAGE)
    assert engine.prefix.find(other) == first.blocks[:1]
    engine.compute(first, 2 * PAGE)
    assert engine.prefix.find(other) == first.blocks[:2]


def test_last_token_is_always_left_to_compute() -> None:
    engine = Engine()
    first = engine.run(shared("1", 2 * PAGE), 2 * PAGE)
    assert engine.prefix.find(shared("2", 2 * PAGE)) == first.blocks[:1]
    assert engine.prefix.find(shared("3", 2 * PAGE + 1)) == first.blocks[:2]
    assert engine.prefix.find(shared("4", 1)) == []


def test_block_that_another_computes_is_awaited_until_it_is_there_or_the_other_ends() -> None:
    engine = Engine()
    first = engine.run(shared("1", 3 * PAGE), 0)
    other, salted = shared("2", 3 * PAGE), shared("3", 3 * PAGE, salt="s")
    assert engine.prefix.awaits(other, 0)
    assert not engine.prefix.awaits(salted, 0)
    engine.compute(first, PAGE)
    assert not engine.prefix.awaits(other, 0)
    assert engine.prefix.awaits(other, 1)
    assert not engine.prefix.awaits(other, 2)  # its last block is its own
    engine.prefix.end(first)
    assert not engine.prefix.awaits(other, 1)
    assert engine.prefix.quiet


def test_block_that_two_computed_is_kept_once() -> None:
    engine = Engine()
    first, second = engine.run(shared("1", 2 * PAGE), 0), engine.run(shared("2", 2 * PAGE), 0)
    engine.compute(first, 2 * PAGE)
    engine.compute(second, 2 * PAGE)
    assert first.blocks == second.blocks
    assert engine.table.blocks[second.slot, :2].tolist() == first.blocks
    assert engine.pool.check([first.blocks, second.blocks]) == []
    assert engine.pool.free == 18


def test_known_blocks_are_adopted_even_in_the_middle_of_one() -> None:
    engine = Engine()
    first, second = engine.run(shared("1", 4 * PAGE), 0), engine.run(shared("2", 4 * PAGE), PAGE + 5)
    engine.compute(first, 3 * PAGE)
    assert engine.prefix.adopt(second) == 2 * PAGE - 5
    assert second.computed == 3 * PAGE
    assert second.blocks[:3] == first.blocks[:3]
    assert engine.prefix.adopt(second) == 0
    assert engine.pool.check([first.blocks, second.blocks]) == []


@pytest.mark.parametrize("person", [b"", b"salt"])
def test_salt_can_not_stand_for_the_beginning_of_another_chain(person: bytes) -> None:
    """What is hashed for the first block are a root and tokens; as text it must be no salt for the second."""
    salt, root = next(
        (salt, root)
        for salt in map(str, count())
        if is_text(root := blake2b(salt.encode(), digest_size=16, person=person).digest())
    )
    engine = Engine()
    known = tuple(range(2 * PAGE))
    first = engine.run(Sequence(replace(request("1", 1, 1), prompt_ids=known, salt=salt)), 2 * PAGE)
    forged = (root + np.array(known[:PAGE], dtype="<i8").tobytes()).decode()
    other = Sequence(replace(request("2", 1, 1), prompt_ids=(*known[PAGE:], 0), salt=forged))
    assert first.published == 2
    assert engine.prefix.find(other) == []


def is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_who_waits_for_a_state_is_cut_in_one_place_however_often_it_looks() -> None:
    engine, waits = Engine(Snapshots(4)), shared("b", 9 * PAGE)
    reads = engine.run(shared("a", 9 * PAGE), 2 * PAGE)
    assert engine.prefix.find(waits) == []
    engine.compute(reads, 5 * PAGE)
    assert engine.prefix.find(waits) == []
    assert waits.beginning.cuts == {5 * PAGE}
    assert engine.prefix.awaits(shared("c", 7 * PAGE), 5)
    assert reads.beginning.cuts == {6 * PAGE, 8 * PAGE}  # where what they have in common ends


def test_state_of_blocks_that_are_forgotten_is_none_to_begin_from() -> None:
    snapshots = Snapshots(4)
    engine, other = Engine(snapshots), shared("b", 9 * PAGE)
    first = engine.run(shared("a", 9 * PAGE), 2 * PAGE)
    snapshots.keep(first.digests[4])
    assert engine.prefix.find(other) == []
    assert other.beginning.cuts == {2 * PAGE}


def test_known_blocks_are_not_adopted_where_a_state_would_be_missing() -> None:
    engine = Engine(Snapshots(4))
    first, second = engine.run(shared("a", 4 * PAGE), 0), engine.run(shared("b", 4 * PAGE), 0)
    engine.compute(first, 3 * PAGE)
    assert engine.prefix.adopt(second) == 0


def read(engine: Engine, sequence: Sequence, start: int, stop: int) -> None:
    """Have a piece of a prompt computed, and states kept."""
    pieces = pack(engine.table, Decodes(), [Chunk(sequence, start, stop)])
    engine.compute(sequence, stop)
    engine.prefix.keep_states(pieces)


def test_states_of_a_prompt_are_kept_where_they_are_to_be_and_nowhere_else() -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    long = engine.run(shared("a", 9 * PAGE), 0)
    assert long.beginning.cuts == {8 * PAGE}  # it is worth a step of its own
    assert engine.run(shared("b", 8 * PAGE), 0).beginning.cuts == set()
    read(engine, long, 0, 4 * PAGE)
    assert (snapshots.find(long.digests), engine.table.moves) == (0, [])
    read(engine, long, 4 * PAGE, 8 * PAGE)
    place = snapshots.use(long.digests[7])
    assert engine.table.moves == [Move(long.slot, place, 8 * PAGE, keeps=True)]
    assert long.beginning.cuts == set()


@pytest.mark.parametrize("ahead", [False, True])
def test_of_a_text_that_goes_on_the_newest_state_alone_is_kept(ahead: bool) -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    text, decodes = engine.run(shared("a", 6 * PAGE), 0), Decodes()
    decodes.add(text)
    for length in range(2 * PAGE, 3 * PAGE + 2):
        engine.table.lengths[text.slot] = length
        engine.compute(text, length - 1)
        engine.prefix.keep_states(pack(engine.table, decodes), ahead=ahead)
        known = (length - ahead) // PAGE  # a step ahead, the newest token isn't known
        assert snapshots.find(text.digests) == (known if known > 1 else 0)
        assert len(text.beginning.kept) <= 1
    assert snapshots.find(text.digests[:2]) == 0
    assert [move.tokens for move in engine.table.moves] == [2 * PAGE, 3 * PAGE]


def test_each_of_a_steps_pieces_has_its_own_state_kept_once() -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    text, short, first, second = (
        engine.run(shared(id, pages * PAGE, salt=salt), 0)
        for id, pages, salt in (("a", 2, "other"), ("b", 2, ""), ("c", 5, ""), ("d", 5, ""))
    )
    for each in (first, second):
        each.beginning.cuts.add(3 * PAGE)
    decodes = Decodes()
    decodes.add(text)
    chunks = [Chunk(short, 0, PAGE), Chunk(first, 0, 3 * PAGE), Chunk(second, 0, 3 * PAGE)]
    engine.prefix.keep_states(pack(engine.table, decodes, chunks), ahead=True)
    assert [(move.slot, move.tokens) for move in engine.table.moves] == [(first.slot, 3 * PAGE)]
    engine.prefix.end(second, keep=False)
    assert snapshots.find(first.digests) == 3


def test_text_that_goes_on_begins_from_a_state_and_leaves_the_one_of_its_prompt() -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    first = engine.run(shared("a", 9 * PAGE), 0)
    read(engine, first, 0, 8 * PAGE)
    second = shared("b", 10 * PAGE)
    assert engine.prefix.find(second) == first.blocks[:8]
    engine.table.moves.clear()
    engine.table.enter(second)
    engine.table.extend(second, first.blocks[:8])
    engine.table.computed[second.slot] = 8 * PAGE
    engine.prefix.begin(second)
    place = snapshots.use(first.digests[7])
    assert engine.table.moves == [Move(second.slot, place, 8 * PAGE, keeps=False)]
    assert second.beginning.cuts == set()  # few tokens are left to read
    decodes = Decodes()
    decodes.add(first)
    for length in (9 * PAGE, 10 * PAGE):
        engine.table.lengths[first.slot] = length
        engine.prefix.keep_states(pack(engine.table, decodes))
        assert snapshots.find(first.digests) == length // PAGE
    assert [snapshots.find(first.digests[:count]) for count in (8, 9)] == [8, 8]


def test_text_whose_state_another_has_kept_goes_on_keeping_its_own() -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    text, decodes = engine.run(shared("a", 4 * PAGE), 0), Decodes()
    decodes.add(text)
    snapshots.keep(text.digests[2])
    for length in (2 * PAGE, 3 * PAGE, 4 * PAGE):
        engine.table.lengths[text.slot] = length
        engine.prefix.keep_states(pack(engine.table, decodes))
    assert [snapshots.find(text.digests[:count]) for count in (2, 3, 4)] == [0, 3, 4]


@pytest.mark.parametrize("keep", [False, True])
def test_states_of_what_went_wrong_are_forgotten_and_others_are_not(keep: bool) -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    long = engine.run(shared("a", 9 * PAGE), 0)
    read(engine, long, 0, 8 * PAGE)
    digests = tuple(long.digests)
    engine.prefix.end(long, keep=keep)
    assert snapshots.find(digests) == (8 if keep else 0)
    assert engine.prefix.check() == []


def test_nothing_is_found_once_all_is_forgotten() -> None:
    snapshots = Snapshots(4)
    engine = Engine(snapshots)
    long = engine.run(shared("a", 9 * PAGE), 0)
    read(engine, long, 0, 8 * PAGE)
    engine.prefix.clear()
    assert (snapshots.find(long.digests), engine.prefix.quiet) == (0, True)
    assert engine.prefix.check() == []
