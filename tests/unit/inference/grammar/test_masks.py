from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inference.grammar.masks import SLOW_SECONDS, Endings, Guide, Mask, MaskPool
from tests.unit.inference.paper_grammar import PaperGrammar, PaperMatcher, allowed

VOCABULARY = 70
EOS = 2
SECONDS = 60.0  # more than anything here takes: that nothing is waited for shows in the test's own limit
CHEAP = PaperGrammar(lambda text: {len(text), EOS}, EOS)


@pytest.fixture
def pool() -> Iterator[MaskPool]:
    pool = MaskPool(VOCABULARY, (EOS, 69))
    yield pool
    pool.close()


def begun(pool: MaskPool, grammar: PaperGrammar, *, cost: float = 0.0) -> Guide:
    guide = pool.guide(grammar)
    guide.cost = cost
    guide.begin()
    return guide


def bits(*tokens: int) -> Mask:
    mask = np.zeros(3, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= 1 << token % 32
    return mask


def test_texts_that_may_end_may_end_with_any_eos() -> None:
    endings = Endings(VOCABULARY, (2, 69, 500))
    ends, goes_on = bits(2, 40), bits(40)
    endings.open(ends)
    endings.open(goes_on)
    assert allowed(ends) == {2, 40, 69}
    assert allowed(goes_on) == {40}


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (bits(2, 40), {40}),
        (bits(40, 41), {40, 41}),
        (bits(2, 69), {2, 69}),  # nothing else is allowed
        (None, set(range(96)) - {2, 69}),  # bits past the vocabulary mean nothing
    ],
)
def test_eos_is_hidden_unless_it_is_all_there_is(mask: Mask | None, left: set[int]) -> None:
    before = None if mask is None else mask.copy()
    assert allowed(Endings(VOCABULARY, (2, 69)).hidden(mask)) == left
    assert mask is None or (mask == before).all()


def test_masks_are_those_of_the_text_so_far(pool: MaskPool) -> None:
    guide = begun(pool, PaperGrammar(lambda text: {(10 * len(text) + sum(text)) % 60, 40}))
    found = []
    for token in (40, 50, 40):
        pool.wait([guide], SECONDS)
        found.append(allowed(guide.mask))
        guide.advance(token)
    assert found == [{0, 40}, {50, 40}, {(20 + 90) % 60, 40}]


def test_finished_text_may_be_followed_by_eos_only(pool: MaskPool) -> None:
    guide = begun(pool, PaperGrammar(lambda text: {5} if not text else {EOS}, EOS))
    pool.wait([guide], SECONDS)
    guide.advance(5)
    pool.wait([guide], SECONDS)
    assert allowed(guide.mask) == {EOS, 69}
    assert not guide.complete  # the token for it is still to come


def test_text_is_complete_at_once_where_there_is_no_eos() -> None:
    pool = MaskPool(VOCABULARY, ())
    guide = begun(pool, PaperGrammar(lambda text: {5} if len(text) < 2 else set()))
    pool.wait([guide], SECONDS)
    guide.advance(5)
    ended = [guide.complete]
    pool.wait([guide], SECONDS)
    guide.advance(5)
    ended.append(guide.complete)
    assert ended == [False, True]
    assert guide.failure is None
    pool.close()


class Panic(BaseException):
    """What native code raises where it gives up."""


def refuse(matcher: PaperMatcher) -> None:
    matcher.accept = lambda token_id: False  # type: ignore[method-assign]


def run_out(matcher: PaperMatcher) -> None:
    def fill(mask: Mask) -> None:
        matcher.error = "too many items"

    matcher.fill_mask = fill  # type: ignore[method-assign]


def panic(matcher: PaperMatcher) -> None:
    def fill(mask: Mask) -> None:
        raise Panic("index out of range")

    matcher.fill_mask = fill  # type: ignore[method-assign]


def allow_nothing(matcher: PaperMatcher) -> None:
    matcher.fill_mask = lambda mask: mask.fill(0)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (refuse, "does not allow token 0, which its mask did"),
        (run_out, "too many items"),
        (panic, "Panic: index out of range"),
        (allow_nothing, "no token of the model fits"),
    ],
)
def test_failing_matcher_fails_its_own_text_only(
    pool: MaskPool, fault: Callable[[PaperMatcher], None], message: str
) -> None:
    bad, good = begun(pool, CHEAP), begun(pool, CHEAP)
    for _ in range(3):  # each of the pool's threads outlives it
        pool.wait([bad, good], SECONDS)
        matcher = bad._matcher
        assert isinstance(matcher, PaperMatcher)
        fault(matcher)
        bad.advance(0)
        pool.wait([bad], SECONDS)
        assert bad.failure is not None
        assert message in bad.failure
        bad = begun(pool, CHEAP)
    good.advance(0)
    pool.wait([good], SECONDS)
    assert (allowed(good.mask), good.failure) == ({1, EOS, 69}, None)


def test_guide_that_is_usually_slow_is_not_waited_for(pool: MaskPool) -> None:
    gate = threading.Event()
    slow = begun(pool, PaperGrammar(lambda text: {1}, gate=gate), cost=2 * SECONDS)
    pool.wait([slow], SECONDS)
    assert not slow.ready
    gate.set()


def test_wait_ends_after_its_time(pool: MaskPool) -> None:
    gate = threading.Event()
    late = begun(pool, PaperGrammar(lambda text: {1}, gate=gate))
    pool.wait([late], 0.001)
    assert not late.ready
    gate.set()
    pool.wait([late], SECONDS)
    assert late.ready


def test_slow_guides_keep_only_each_other_waiting(pool: MaskPool) -> None:
    gate = threading.Event()
    blocked = PaperGrammar(lambda text: {1}, gate=gate)
    slow = [begun(pool, blocked, cost=2 * SLOW_SECONDS) for _ in range(10)]
    quick = [begun(pool, CHEAP) for _ in range(10)]
    pool.wait(quick, SECONDS)
    assert [guide.ready for guide in quick] == [True] * 10
    assert [guide.ready for guide in slow] == [False] * 10
    gate.set()
    for guide in slow:
        guide.cost = 0.0
    pool.wait(slow, SECONDS)
    assert [guide.ready for guide in slow] == [True] * 10


def test_threads_that_could_not_be_started_are_started_by_the_next_guide(
    pool: MaskPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, 0

    def no_room(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started > 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        with pytest.raises(RuntimeError, match="new thread"):
            begun(pool, CHEAP)
    slow = begun(pool, CHEAP, cost=2 * SLOW_SECONDS)
    with pool._changed:
        assert pool._changed.wait_for(lambda: slow.ready, SECONDS)


def test_guide_for_which_there_was_no_memory_has_not_begun() -> None:
    asked: list[Guide] = []

    def submit(guide: Guide) -> None:
        asked.append(guide)
        if len(asked) == 1:
            raise MemoryError

    guide = Guide(CHEAP.start(), Endings(VOCABULARY, (EOS,)), submit)
    with pytest.raises(MemoryError):
        guide.begin()
    assert not guide.begun
    guide.begin()
    assert guide.begun


def test_slowness_is_seen_and_forgotten_again() -> None:
    pool = MaskPool(VOCABULARY, (EOS,))
    guide = pool.guide(PaperGrammar(lambda text: {number * number % 7 for number in range(20_000)}))
    guide.compute()
    before = guide.cost
    assert before > 0
    guide._matcher = CHEAP.start()
    for _ in range(4):
        guide.compute()
    assert guide.cost < before


def test_closed_guide_costs_no_more_work(pool: MaskPool) -> None:
    grammar = PaperGrammar(lambda text: {1})
    guide = pool.guide(grammar)
    guide.close()
    guide.begin()
    pool.wait([guide], SECONDS)
    assert grammar.fills == 0


def test_whoever_waits_on_the_pools_condition_hears_of_a_mask() -> None:
    changed = threading.Condition()
    pool = MaskPool(VOCABULARY, (EOS,), changed=changed)
    with changed:
        guide = begun(pool, CHEAP)
        assert changed.wait_for(lambda: guide.ready, SECONDS)
    pool.close()


def threads() -> set[threading.Thread]:
    """Return the threads of all pools; those of other tests may end at any time."""
    return {thread for thread in threading.enumerate() if thread.name == "grammar-masks"}


def test_closing_leaves_no_thread_and_does_not_wait_for_what_is_queued() -> None:
    before = threads()
    pool = MaskPool(VOCABULARY, (EOS,), workers=1)
    assert threads() <= before  # none until a grammar is used
    gate = threading.Event()
    blocked = PaperGrammar(lambda text: {1}, gate=gate)
    running = begun(pool, blocked)
    while not blocked.fills:
        time.sleep(0.001)
    assert threads() - before
    begun(pool, CHEAP)
    fills = CHEAP.fills
    closing = threading.Thread(target=pool.close)
    closing.start()
    while pool._quick.qsize() != 1:  # the sign to end, in place of what was queued
        time.sleep(0.001)
    gate.set()
    closing.join(SECONDS)
    assert threads() <= before
    assert running.ready
    assert CHEAP.fills == fills


class LateMatcher(PaperMatcher):
    """A matcher with work to do before its first mask."""

    def __init__(self, grammar: PaperGrammar, seconds_to_prepare: float, *, fails: bool = False) -> None:
        super().__init__(grammar)
        self.seconds_to_prepare = seconds_to_prepare
        self.prepared_on: list[str] = []
        self._fails = fails

    def prepare(self) -> None:
        self.prepared_on.append(threading.current_thread().name)
        if self._fails:
            raise ValueError("it can't be compiled")


class LateGrammar(PaperGrammar):
    """A grammar whose matchers are late."""

    def __init__(self, matcher: LateMatcher) -> None:
        super().__init__(CHEAP.rule, EOS)
        self._matcher = matcher

    def start(self) -> LateMatcher:
        return self._matcher


def test_late_matchers_are_prepared_once_by_the_pool(pool: MaskPool) -> None:
    matcher = LateMatcher(CHEAP, 0.001)
    guide = pool.guide(LateGrammar(matcher))
    assert (guide.cost, matcher.prepared_on) == (0.001, [])
    guide.begin()
    for token in range(3):
        pool.wait([guide], SECONDS)
        guide.advance(token)
    pool.wait([guide], SECONDS)
    assert matcher.prepared_on == ["grammar-masks"]
    assert guide.failure is None


def test_what_takes_long_to_prepare_counts_as_slow_until_it_is_done() -> None:
    submitted: list[Guide] = []
    guide = Guide(LateMatcher(CHEAP, 30.0), Endings(VOCABULARY, (EOS,)), submitted.append)
    guide.begin()
    assert guide.cost == 30.0 > SLOW_SECONDS
    guide.compute()
    assert guide.cost < 30.0 / 2
    assert submitted == [guide]


def test_text_whose_matcher_can_not_be_prepared_fails(pool: MaskPool) -> None:
    guide = pool.guide(LateGrammar(LateMatcher(CHEAP, 0.0, fails=True)))
    guide.begin()
    pool.wait([guide], SECONDS)
    assert guide.failure == "The grammar's matcher failed: ValueError: it can't be compiled"
