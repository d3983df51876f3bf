"""Limits of steps shrink when memory is too short, and grow back by and by, never beyond what was set."""

from __future__ import annotations

import pytest

from inference.scheduling.budget import Limits
from inference.scheduling.easing import EASED_STEPS, LEAST_TOKENS, Easing
from inference.scheduling.scheduler import Scheduler
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack
from tests.unit.inference.paper_model import request
from tests.unit.inference.scheduling.test_scheduler import make, queue, run


def limits(tokens: int = 256, sequences: int = 8, *, chunked: bool = True) -> Limits:
    return Limits(tokens=tokens, sequences=sequences, logit_rows=64, chunked=chunked)


def step(*sizes: int) -> Pieces:
    """Return a step that computes so much of a prompt each."""
    table = SlotTable(len(sizes), 100)
    sequences = [Sequence(request(str(at), 1000, 5)) for at in range(len(sizes))]
    for sequence in sequences:
        table.enter(sequence)
    chunks = [Chunk(sequence, 0, size) for sequence, size in zip(sequences, sizes, strict=True)]
    return pack(table, Decodes(), chunks)


def running(count: int) -> list[Sequence]:
    return [Sequence(request(str(at), 1000, 5)) for at in range(count)]


def counts(easing: Easing) -> tuple[int, int]:
    return easing.now.tokens, easing.now.sequences


def test_limits_are_halved_and_each_time_twice_as_large_after_so_many_steps() -> None:
    easing = Easing(limits())
    easing.shrink(step(256), running(8))
    easing.begin_step()
    easing.shrink(step(128), running(4))
    for before, after in (((64, 2), (128, 4)), ((128, 4), (256, 8))):
        for _ in range(EASED_STEPS - 1):
            easing.begin_step()
        assert counts(easing) == before
        easing.begin_step()
        assert counts(easing) == after
    assert easing.now == limits()


def test_either_limit_stops_where_it_was_though_the_other_goes_on() -> None:
    easing, seen = Easing(limits(100, 64)), []
    for tokens, count in ((100, 64), (50, 32), (32, 16)):
        easing.shrink(step(tokens), running(count))
    while easing.now != limits(100, 64):
        seen.append(counts(easing))
        for _ in range(EASED_STEPS):
            easing.begin_step()
    assert seen == [(32, 8), (64, 16), (100, 32)]


def test_steps_of_several_keep_some_tokens_for_each() -> None:
    easing = Easing(limits())
    easing.shrink(step(40), running(8))
    assert counts(easing) == (LEAST_TOKENS, 4)


def test_those_that_came_last_go_back_and_whose_cache_the_runner_keeps() -> None:
    easing, all_four = Easing(limits()), running(4)
    all_four[1].cache = all_four[3].cache = object()
    assert easing.shrink(step(200), all_four) == [all_four[2], all_four[3], all_four[1]]


@pytest.mark.parametrize(
    ("tokens", "chunked", "stays"),
    [(256, False, True), (99, True, True), (100, True, False), (256, True, False)],
)
def test_prompt_that_is_not_cut_and_is_most_of_a_step_stays_alone(
    tokens: int, chunked: bool, stays: bool
) -> None:
    """One that is cut is never larger than a step: what is larger is an image."""
    easing, pieces = Easing(limits(tokens, chunked=chunked)), step(20, 100, 20)
    first, large, last = (chunk.sequence for chunk in pieces.prompts)
    assert easing.shrink(pieces, [first, large, last]) == ([first, last] if stays else [last])


def test_half_of_a_step_is_not_most_of_it() -> None:
    pieces = step(100, 50, 25, 25)
    sequences = [chunk.sequence for chunk in pieces.prompts]
    assert Easing(limits(chunked=False)).shrink(pieces, sequences) == sequences[2:]


@pytest.mark.parametrize(
    ("size", "chunked", "smaller"),
    [
        (LEAST_TOKENS, True, False),
        (LEAST_TOKENS + 1, True, True),
        (256, True, True),
        (257, True, False),  # an image
        (200, False, False),
    ],
)
def test_one_alone_has_a_smaller_step_only_if_it_can_be_cut(size: int, chunked: bool, smaller: bool) -> None:
    easing = Easing(limits(chunked=chunked))
    assert easing.shrink(step(size), running(1)) == ([] if smaller else None)
    assert (easing.now.tokens < 256) == smaller


def test_no_more_are_let_in_than_eased_steps_take() -> None:
    scheduler: Scheduler = make(tokens=64, sequences=8)
    queue(scheduler, *[8] * 8)
    pieces = run(scheduler).pieces
    assert scheduler.ease(pieces) == 4
    run(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (4, 4)


def test_step_of_one_that_can_not_be_smaller_is_said_to_be_so() -> None:
    scheduler = make(tokens=64)
    queue(scheduler, 8)
    assert scheduler.ease(run(scheduler).pieces) is None
    assert len(scheduler.running) == 1
