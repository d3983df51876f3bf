from __future__ import annotations

from inference.blocks import PAGE, BlockPool
from inference.scheduler import Batch, Limits, Scheduler
from inference.state import Sequence
from tests.unit.inference.paper_model import request


def make(
    blocks: int = 100, *, tokens: int = 32, sequences: int = 8, rows: int = 1000, chunked: bool = True
) -> Scheduler:
    limits = Limits(tokens=tokens, sequences=sequences, logit_rows=rows, chunked=chunked)
    return Scheduler(BlockPool(blocks), limits)


def queue(scheduler: Scheduler, *lengths: int, prompt_logprobs: bool = False) -> list[Sequence]:
    sequences = [
        Sequence(request(str(index), length, 100, prompt_logprobs=prompt_logprobs))
        for index, length in enumerate(lengths)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def run(scheduler: Scheduler) -> Batch:
    """Schedule a step and do what the stepper does after it."""
    batch = scheduler.schedule()
    for chunk in batch.chunks:
        samples = chunk.samples
        chunk.sequence.computed = chunk.stop
        if samples:
            chunk.sequence.append(9)
    return batch


def pieces(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.id, chunk.start, chunk.stop) for chunk in batch.chunks]


def test_prompts_are_cut_to_the_budget_and_continued() -> None:
    scheduler = make(tokens=32)
    queue(scheduler, 20, 30)
    assert pieces(run(scheduler)) == [("0", 0, 20), ("1", 0, 12)]
    assert pieces(run(scheduler)) == [("0", 20, 21), ("1", 12, 30)]
    assert pieces(run(scheduler)) == [("0", 21, 22), ("1", 30, 31)]


def test_decodes_come_before_a_long_prompt_and_go_on_beside_it() -> None:
    scheduler = make(tokens=8)
    queue(scheduler, 4, 30)
    run(scheduler)
    for step in range(3):
        batch = run(scheduler)
        assert pieces(batch)[0] == ("0", 4 + step, 5 + step)
        assert sum(chunk.size for chunk in batch.chunks) == 8


def test_a_last_piece_of_one_token_is_not_a_decode() -> None:
    scheduler = make(tokens=8)
    queue(scheduler, 9)
    run(scheduler)
    (chunk,) = run(scheduler).chunks
    assert (chunk.start, chunk.stop) == (8, 9)


def test_queue_is_first_in_first_out_and_nobody_passes_its_head() -> None:
    scheduler = make(blocks=4)
    queue(scheduler, 2 * PAGE - 1, 3 * PAGE, 1)
    batch = run(scheduler)
    assert pieces(batch) == [("0", 0, 2 * PAGE - 1)]
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
    assert [chunk.sequence for chunk in batch.chunks] == [old]
    assert (new.computed, new.blocks) == (0, [])
    assert [sequence.id for sequence in scheduler.waiting] == ["1", "2"]


def test_preempted_sequence_is_computed_again_with_what_it_had_generated() -> None:
    scheduler = make(blocks=3, tokens=64)
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
    assert pieces(run(scheduler)) == [("1", 0, known)]


def test_removed_sequences_leave_no_blocks_behind() -> None:
    pool = BlockPool(10)
    scheduler = Scheduler(pool, Limits(tokens=8, sequences=1, logit_rows=8))
    running, waiting = queue(scheduler, 12, 3)
    run(scheduler)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert scheduler.idle
    assert pool.free == 10


def test_prompts_with_logprobs_are_cut_to_the_rows_that_memory_allows() -> None:
    scheduler = make(tokens=64, rows=10)
    queue(scheduler, 15, 15, prompt_logprobs=True)
    assert pieces(run(scheduler)) == [("0", 0, 10)]
    assert pieces(run(scheduler)) == [("0", 10, 15), ("1", 0, 5)]


def test_unchunked_prompts_are_whole_and_only_the_first_may_pass_the_budget() -> None:
    scheduler = make(tokens=10, chunked=False)
    queue(scheduler, 4, 40, 4)
    assert pieces(run(scheduler)) == [("0", 0, 4)]
    assert pieces(run(scheduler)) == [("0", 4, 5), ("1", 0, 40)]
    assert pieces(run(scheduler)) == [("0", 5, 6), ("1", 40, 41), ("2", 0, 4)]
