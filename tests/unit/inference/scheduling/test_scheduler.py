from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.kv_cache.blocks import PAGE
from inference.scheduling.scheduler import Batch, Limits, Scheduler
from inference.sequences.state import Sequence
from tests.unit.inference.paper_model import make_scheduler, request


def make(
    blocks: int = 100,
    *,
    tokens: int = 32,
    sequences: int = 8,
    rows: int = 1000,
    chunked: bool = True,
    prefix_caching: bool = True,
    beside: int | None = None,
) -> Scheduler:
    limits = Limits(tokens=tokens, sequences=sequences, logit_rows=rows, chunked=chunked, beside=beside)
    return make_scheduler(blocks, limits, prefix_caching=prefix_caching)


def queue(scheduler: Scheduler, *lengths: int, prompt_logprobs: bool = False) -> list[Sequence]:
    sequences = [
        Sequence(request(str(index), length, 100, prompt_logprobs=prompt_logprobs))
        for index, length in enumerate(lengths)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def run(scheduler: Scheduler) -> Batch:
    """Schedule a step and do what the stepper does after it, on a model whose every token is the same."""
    batch = scheduler.schedule()
    pieces = batch.pieces
    sampling = pieces.sampling
    scheduler.complete(pieces, sampling[len(pieces.decodes) :], ())
    slots = np.array([sequence.slot for sequence in sampling], dtype=np.int64)
    pieces.table.append(slots, np.full(len(sampling), 9))
    return batch


def computed(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.id, chunk.start, chunk.stop) for chunk in batch.pieces.chunks]


def test_prompts_are_cut_to_the_budget_and_continued() -> None:
    scheduler = make(tokens=32)
    queue(scheduler, 20, 30)
    assert computed(run(scheduler)) == [("0", 0, 20), ("1", 0, 12)]
    assert computed(run(scheduler)) == [("0", 20, 21), ("1", 12, 30)]
    assert computed(run(scheduler)) == [("0", 21, 22), ("1", 30, 31)]


def test_decodes_come_before_a_long_prompt_and_go_on_beside_it() -> None:
    scheduler = make(tokens=8)
    queue(scheduler, 4, 30)
    run(scheduler)
    for step in range(3):
        batch = run(scheduler)
        assert computed(batch)[0] == ("0", 4 + step, 5 + step)
        assert len(batch.pieces.ids) == 8


def test_text_waits_for_a_crowd_of_prompts_once_and_for_few_in_small_pieces() -> None:
    scheduler = make(tokens=200, beside=8, prefix_caching=False)
    queue(scheduler, 4)
    run(scheduler)
    queue(scheduler, 20, 20, 20, 20)
    assert [chunk.size for chunk in run(scheduler).pieces.chunks] == [1, 20, 20, 20, 20]
    queue(scheduler, 30, 30)
    assert [chunk.size for chunk in run(scheduler).pieces.chunks] == [1] * 5 + [15]  # three for each text


def test_prompts_that_are_being_computed_are_part_of_the_crowd() -> None:
    scheduler = make(tokens=64, beside=8, prefix_caching=False)
    queue(scheduler, 4)
    run(scheduler)
    queue(scheduler, 80, 80, 80, 80)
    sizes = [sum(chunk.size for chunk in run(scheduler).pieces.prompts) for _ in range(3)]
    assert sizes == [63, 63, 8]  # the first has ended then: three wait for two


def test_queue_is_first_in_first_out_and_nobody_passes_its_head() -> None:
    scheduler = make(blocks=4)
    queue(scheduler, 2 * PAGE - 1, 3 * PAGE, 1)
    batch = run(scheduler)
    assert computed(batch) == [("0", 0, 2 * PAGE - 1)]
    assert [sequence.id for sequence in scheduler.waiting] == ["1", "2"]


def test_no_more_sequences_run_than_allowed() -> None:
    scheduler = make(sequences=2)
    queue(scheduler, 3, 3, 3)
    assert run(scheduler).admitted == 2
    assert run(scheduler).admitted == 0


def test_newest_is_preempted_when_the_oldest_needs_a_block() -> None:
    scheduler = make(blocks=5, tokens=64)
    old, new = queue(scheduler, PAGE - 1, 2 * PAGE - 2)
    run(scheduler)  # 1 + 2 blocks; old knows PAGE tokens, new 2 * PAGE - 1
    other = Sequence(request("2", 1, 5))
    scheduler.add(other)
    assert run(scheduler).admitted == 0  # 2 free, and one is left for each that runs
    assert [len(old.blocks), len(new.blocks)] == [1, 2]
    assert run(scheduler).preempted == 0  # old takes the 4th, new the 5th
    for _ in range(PAGE - 1):
        run(scheduler)
    batch = run(scheduler)
    assert batch.preempted == 1
    assert [chunk.sequence for chunk in batch.pieces.chunks] == [old]
    assert (new.computed, new.blocks) == (0, [])
    assert [sequence.id for sequence in scheduler.waiting] == ["1", "2"]


def test_preempted_sequence_is_computed_again_with_what_it_had_generated() -> None:
    scheduler = make(blocks=3, tokens=64, prefix_caching=False)
    old, new = queue(scheduler, PAGE - 2, 1)
    while not scheduler.waiting:
        run(scheduler)
        if new.blocks and len(old.blocks) == 2:
            break
    known = new.length
    while new.blocks:
        known = new.length
        run(scheduler)
    scheduler.remove(old)
    assert computed(run(scheduler)) == [("1", 0, known)]


def test_removed_sequences_leave_no_blocks_behind() -> None:
    scheduler = make(blocks=10, tokens=8, sequences=1)
    running, waiting = queue(scheduler, 12, 3)
    idle = scheduler.idle
    run(scheduler)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert (idle, scheduler.idle) == (False, True)
    assert scheduler.check() == []


def test_prompts_with_logprobs_are_cut_to_the_rows_that_memory_allows() -> None:
    scheduler = make(tokens=64, rows=10)
    queue(scheduler, 15, 15, prompt_logprobs=True)
    assert computed(run(scheduler)) == [("0", 0, 10)]
    assert computed(run(scheduler)) == [("0", 10, 15), ("1", 0, 5)]


def test_unchunked_prompts_are_whole_and_only_the_first_may_pass_the_budget() -> None:
    scheduler = make(tokens=10, chunked=False)
    queue(scheduler, 4, 40, 4)
    assert computed(run(scheduler)) == [("0", 0, 4), ("2", 0, 4)]
    assert computed(run(scheduler)) == [("0", 4, 5), ("2", 4, 5), ("1", 0, 40)]


def test_short_prompt_passes_a_long_one_that_gets_what_is_left() -> None:
    scheduler = make(tokens=32)
    queue(scheduler, 100, 100, 9)
    assert computed(run(scheduler)) == [("0", 0, 23), ("2", 0, 9)]
    assert computed(run(scheduler)) == [("2", 9, 10), ("0", 23, 54)]
    assert computed(run(scheduler)) == [("2", 10, 11), ("0", 54, 85)]
    assert computed(run(scheduler)) == [("2", 11, 12), ("0", 85, 100), ("1", 0, 16)]


def test_short_prompt_that_fits_no_step_is_read_beside_a_long_one_and_not_behind_it() -> None:
    scheduler = make(blocks=1100, tokens=200, beside=16, prefix_caching=False)
    queue(scheduler, 4)
    run(scheduler)
    _, short = queue(scheduler, 16_000, 40)
    for _ in range(5):
        run(scheduler)
    assert short.generated == 1


def test_long_prompt_goes_on_while_short_ones_keep_coming() -> None:
    scheduler = make(tokens=32, sequences=4)
    (long,) = queue(scheduler, 100)
    for step in range(6):
        scheduler.add(Sequence(request(str(step + 1), 16, 1)))
        batch = run(scheduler)
        for chunk in batch.pieces.chunks:
            if chunk.sequence is not long and chunk.sequence.generated:
                scheduler.remove(chunk.sequence)
    assert long.generated > 0


def share(scheduler: Scheduler, id: str, length: int, *, salt: str = "", owner: str = "") -> Sequence:
    """Queue a sequence whose prompt begins as all of them do."""
    sequence = Sequence(request(id, length, 100, prefix=5 * PAGE, salt=salt, owner=owner))
    scheduler.add(sequence)
    return sequence


def test_blocks_that_several_share_are_held_once() -> None:
    scheduler = make(tokens=100, sequences=4)
    for id in "123":
        share(scheduler, id, 5 * PAGE)
        run(scheduler)
    assert scheduler.kv_tokens > 3 * 5 * PAGE
    assert scheduler.held_tokens == (5 + 2) * PAGE  # the first two write into blocks of their own by now


def test_prompt_of_an_ended_request_is_found_but_for_its_last_token() -> None:
    scheduler = make(tokens=100)
    first = share(scheduler, "1", 3 * PAGE)
    run(scheduler)
    scheduler.remove(first)
    share(scheduler, "2", 3 * PAGE)
    batch = run(scheduler)
    assert computed(batch) == [("2", 2 * PAGE, 3 * PAGE)]
    assert batch.cached_tokens == 2 * PAGE


def test_generated_tokens_are_found_by_a_prompt_that_repeats_them() -> None:
    scheduler = make(tokens=100)
    first = share(scheduler, "1", PAGE)
    for _ in range(2 * PAGE + 1):  # its last block has just become full
        run(scheduler)
    again = Sequence(replace(request("2", 1, 1), prompt_ids=(*first.ids[: 3 * PAGE].tolist(), 1)))
    scheduler.remove(first)
    scheduler.add(again)
    assert computed(run(scheduler)) == [("2", 3 * PAGE, 3 * PAGE + 1)]


def test_generated_tokens_are_found_while_their_text_goes_on() -> None:
    scheduler = make(tokens=100)
    first = share(scheduler, "1", PAGE)
    for _ in range(2 * PAGE + 2):
        run(scheduler)
    scheduler.add(Sequence(replace(request("2", 1, 1), prompt_ids=(*first.ids[: 3 * PAGE].tolist(), 1))))
    assert computed(run(scheduler))[1:] == [("2", 3 * PAGE, 3 * PAGE + 1)]


def test_blocks_that_wait_to_be_found_are_not_counted_twice() -> None:
    scheduler = make(blocks=7, tokens=1000)
    first = share(scheduler, "1", 5 * PAGE)
    run(scheduler)
    scheduler.remove(first)
    queue(scheduler, 3)
    run(scheduler)
    # 6 are available, 5 of them found: 1 is left for the 2 that are missing
    second = share(scheduler, "2", 6 * PAGE + 1)
    assert run(scheduler).admitted == 0
    assert second in scheduler.waiting


def test_blocks_are_shared_while_both_run() -> None:
    scheduler = make(tokens=100)
    first = share(scheduler, "1", 3 * PAGE)
    run(scheduler)
    second = share(scheduler, "2", 4 * PAGE)
    run(scheduler)
    assert first.blocks[:3] == second.blocks[:3]
    assert second.cached_tokens == 3 * PAGE


@pytest.mark.parametrize(("salts", "cached"), [(("a", "a"), PAGE), (("a", "b"), 0), (("", "a"), 0)])
def test_only_the_same_salt_finds_anything(salts: tuple[str, str], cached: int) -> None:
    scheduler = make(tokens=100)
    share(scheduler, "1", 2 * PAGE, salt=salts[0])
    run(scheduler)
    share(scheduler, "2", 2 * PAGE, salt=salts[1])
    assert run(scheduler).cached_tokens == cached


def test_nothing_is_found_without_prefix_caching_or_chunks() -> None:
    for scheduler in (make(tokens=100, prefix_caching=False), make(tokens=100, chunked=False)):
        first = share(scheduler, "1", 2 * PAGE)
        run(scheduler)
        second = share(scheduler, "2", 2 * PAGE)
        run(scheduler)
        assert second.cached_tokens == 0
        assert set(first.blocks).isdisjoint(second.blocks)


def test_nobody_computes_what_another_computes_and_others_go_first() -> None:
    scheduler = make(tokens=40)
    share(scheduler, "1", 4 * PAGE)
    share(scheduler, "2", PAGE + 1)
    queue(scheduler, 3)
    assert computed(run(scheduler)) == [("1", 0, 37), ("0", 0, 3)]
    assert computed(run(scheduler)) == [("0", 3, 4), ("1", 37, 64), ("2", 16, 17)]


def test_who_waited_for_a_block_computes_it_when_its_computer_is_gone() -> None:
    scheduler = make(tokens=20)
    first = share(scheduler, "1", 3 * PAGE)
    share(scheduler, "2", 3 * PAGE)
    run(scheduler)
    scheduler.remove(first)
    assert computed(run(scheduler)) == [("2", 16, 36)]


def test_prompt_with_logprobs_is_computed_whole_and_found_by_others() -> None:
    scheduler = make(tokens=100)
    share(scheduler, "1", 2 * PAGE)
    run(scheduler)
    scored = Sequence(replace(request("2", 3 * PAGE, 5, prefix=5 * PAGE), prompt_logprobs=True))
    scheduler.add(scored)
    assert computed(run(scheduler))[1:] == [("2", 0, 3 * PAGE)]
    third = share(scheduler, "3", 4 * PAGE)
    run(scheduler)
    assert third.cached_tokens == 3 * PAGE
    assert scheduler.check() == []


def test_block_that_becomes_known_is_adopted_before_the_next_piece() -> None:
    scheduler = make(tokens=20, rows=4)
    # The first takes no hits and computes slowly; the second doesn't wait for what is known by then.
    scored = Sequence(replace(request("1", 3 * PAGE, 5, prefix=5 * PAGE), prompt_logprobs=True))
    scheduler.add(scored)
    run(scheduler)
    other = Sequence(replace(request("2", 3 * PAGE, 5, prefix=5 * PAGE), prompt_logprobs=True))
    scheduler.add(other)
    while not (scored.generated and other.generated):
        run(scheduler)
    assert scored.blocks[:3] == other.blocks[:3]
    assert scheduler.check() == []


def test_preempted_sequence_finds_what_it_had_computed() -> None:
    scheduler = make(blocks=6, tokens=64)
    old, new = queue(scheduler, 2 * PAGE - 1, 2 * PAGE - 1)
    while not new.preemptions:
        run(scheduler)
    scheduler.remove(old)
    batch = run(scheduler)
    assert computed(batch) == [("1", 2 * PAGE, 3 * PAGE + 1)]  # the last block went to the one that grew
    assert batch.cached_tokens == 0  # it had computed them itself
    assert new.length > new.prompt_length


def test_owner_with_the_least_running_work_goes_first() -> None:
    scheduler = make(tokens=1000, sequences=3)
    for index in range(6):
        scheduler.add(Sequence(request(str(index), 20, 100, owner="many")))
    scheduler.add(Sequence(request("6", 20, 100, owner="few")))
    scheduler.add(Sequence(request("7", 20, 100, owner="few")))
    assert [id for id, *_ in computed(run(scheduler))] == ["0", "6", "1"]
    for sequence in tuple(scheduler.running)[:2]:
        scheduler.remove(sequence)
    assert [id for id, *_ in computed(run(scheduler))] == ["1", "7", "2"]
