from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference.kv_cache.blocks import PAGE, BlockPool, blocks_for
from inference.kv_cache.free_blocks import RUN


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (10 * PAGE, 10)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


CONTENTS = st.sampled_from([bytes([number]) for number in range(12)])


class PaperPool:
    """What a pool must do, by lists alone."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.holdings: list[list[int]] = []
        self.known: dict[bytes, int] = {}
        self.idle: list[int] = []  # longest waiting first

    def holders(self, block: int) -> int:
        return sum(holding.count(block) for holding in self.holdings)

    def forget(self, block: int) -> None:
        self.known = {digest: each for digest, each in self.known.items() if each != block}

    def let_go(self, blocks: list[int], *, keep: bool) -> None:
        for index, block in reversed(list(enumerate(blocks))):
            if self.holders(block) or block in blocks[:index]:
                continue
            if not keep:
                self.forget(block)
            if block in self.known.values():
                self.idle.append(block)


class Pools(RuleBasedStateMachine):
    """A pool does what the lists do, and its own check finds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.paper = PaperPool(8)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        if count > self.pool.available:
            return
        evicted = max(count - self.pool.free, 0)
        for block in self.paper.idle[:evicted]:
            self.paper.forget(block)
        taken = self.pool.take(count)
        assert self.paper.idle[:evicted] == taken[count - evicted :]
        del self.paper.idle[:evicted]
        assert not any(self.paper.holders(block) for block in taken)
        self.paper.holdings.append(taken)

    @rule(at=st.integers(0, 9), content=CONTENTS)
    def publish(self, at: int, content: bytes) -> None:
        own = [
            (holding, index)
            for holding in self.paper.holdings
            for index, block in enumerate(holding)
            if block not in self.paper.known.values()
        ]
        if not own:
            return
        holding, index = own[at % len(own)]
        block = holding[index]
        kept = self.paper.known.setdefault(content, block)
        assert self.pool.publish(block, content) == kept
        holding[index] = kept
        if kept in self.paper.idle:
            self.paper.idle.remove(kept)

    @rule(contents=st.lists(CONTENTS, max_size=4, unique=True))
    def find(self, contents: list[bytes]) -> None:
        expected = []
        for content in contents:
            if content not in self.paper.known:
                break
            expected.append(self.paper.known[content])
        found = self.pool.find(contents)
        assert found == expected
        assert self.pool.idle_among(found) == sum(not self.paper.holders(block) for block in found)
        self.pool.hold(found)
        self.paper.holdings.append(found)
        self.paper.idle = [block for block in self.paper.idle if block not in found]

    @rule(at=st.integers(0, 9), keep=st.booleans())
    def give_back(self, at: int, keep: bool) -> None:
        if self.paper.holdings:
            holding = self.paper.holdings.pop(at % len(self.paper.holdings))
            self.pool.give_back(holding, keep=keep)
            self.paper.let_go(holding, keep=keep)

    @invariant()
    def books_balance(self) -> None:
        assert self.pool.check(self.paper.holdings) == []
        held = {block: self.paper.holders(block) for block in range(8) if self.paper.holders(block)}
        assert self.pool.held == held
        assert self.pool.idle == len(self.paper.idle)
        assert self.pool.free == 8 - len(held) - len(self.paper.idle)


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_block_can_be_given_back_once() -> None:
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(AssertionError):
        pool.give_back(taken)


def test_more_than_there_are_can_not_be_taken() -> None:
    with pytest.raises(AssertionError):
        BlockPool(2).take(3)


def test_end_of_a_sequence_is_forgotten_before_its_beginning() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block, digest in zip(blocks, (b"1", b"2", b"3"), strict=True):
        pool.publish(block, digest)
    pool.give_back(blocks)
    pool.take(2)
    assert pool.find([b"1", b"2", b"3"]) == blocks[:1]


def test_check_says_what_is_wrong() -> None:
    pool = BlockPool(3)
    pool.take(1)
    assert pool.check() == ["block 0 is held 1 times, as the sequences say 0"]
    pool.clear()
    assert pool.check() == []


def filled(pool: BlockPool, order: list[int]) -> None:
    """Have every block's content known, and given back in this order."""
    for block in pool.take(pool.size):
        pool.publish(block, bytes([block]))
    for block in order:
        pool.give_back([block])


def test_contents_that_are_forgotten_are_not_found() -> None:
    pool = BlockPool(8)
    filled(pool, list(range(8)))
    pool.clear()
    assert pool.find([bytes([0])]) == []
    assert not pool.knows(bytes([0]))
    assert pool.check() == []


@pytest.mark.parametrize(("together", "forgotten"), [(True, 4), (False, 1)])
def test_of_one_run_those_next_in_line_are_forgotten_together_and_no_others(
    together: bool, forgotten: int
) -> None:
    pool = BlockPool(16 * RUN)
    apart = [run * RUN + at for at in range(RUN) for run in range(16)]
    filled(pool, list(range(pool.size)) if together else apart)
    pool.take(1)
    assert pool.idle == pool.size - forgotten


def test_last_known_content_gives_way_where_no_other_is_left() -> None:
    pool = BlockPool(16 * RUN)
    filled(pool, [3])
    assert pool.take(1) == [3]
