from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace

import numpy as np
import pytest

from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE
from inference.scheduling.scheduler import Limits
from inference.sequences.chosen import Chosen
from inference.sequences.state import Pieces
from inference.sequences.work import Work
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason, Frame
from tests.unit.inference.paper_grammar import ManualPool
from tests.unit.inference.paper_model import (
    EOS,
    VOCABULARY,
    PaperRunner,
    PaperSampler,
    make_scheduler,
    request,
    whole_text,
)

LIMITS = Limits(tokens=32, sequences=8, logit_rows=64)


class Broken(PaperRunner):
    """Fails on every step that holds the sequence named "13"."""

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> list[int]:
        if any(chunk.sequence.id == "13" for chunk in pieces.chunks):
            raise RuntimeError("out of luck")
        return super().run(pieces, tokens_only=tokens_only)


class NotANumber(PaperSampler):
    """Finds the logits of the sequence named "13" broken."""

    def choose(self, work: Work, logits: list[int] | None) -> Chosen:
        failures = {sequence: "broken" for sequence in work.sequences if sequence.id == "13"}
        return replace(super().choose(work, logits), failures=failures)


def make(runner: PaperRunner | None = None, sampler: PaperSampler | None = None) -> Stepper[list[int]]:
    scheduler = make_scheduler(50, LIMITS)
    masks = ManualPool(VOCABULARY, (EOS,))
    return Stepper(scheduler, runner or PaperRunner(), sampler or PaperSampler(), (EOS,), masks)


def run(stepper: Stepper[list[int]], *requests: CoreRequest) -> dict[str, list[CoreOutput | CoreFailure]]:
    said: dict[str, list[CoreOutput | CoreFailure]] = {each.id: [] for each in requests}
    for each in requests:
        stepper.add(each)
    while not stepper.idle:
        for output in stepper.step().outputs:
            said[output.id].append(output)
    return said


def tokens(outputs: Several[CoreOutput | CoreFailure]) -> list[int]:
    return [output.token_id for output in outputs if isinstance(output, CoreOutput)]


def reason(outputs: Several[CoreOutput | CoreFailure]) -> FinishReason | None:
    last = outputs[-1]
    assert isinstance(last, CoreOutput)
    return last.finish


def test_text_ends_with_eos_or_at_its_length() -> None:
    requests = [request(str(index), 5 + index, 30) for index in range(12)]
    for each, outputs in zip(requests, run(make(), *requests).values(), strict=True):
        expected = whole_text(each)
        assert tokens(outputs) == expected
        assert reason(outputs) is (FinishReason.EOS if len(expected) < 30 else FinishReason.LENGTH)


def test_eos_exactly_at_the_limit_reports_length() -> None:
    free = next(each for each in (request(str(i), 5, 200) for i in range(50)) if whole_text(each)[-1] == EOS)
    limited = request(free.id, 5, len(whole_text(free)))
    outputs = run(make(), limited)[free.id]
    assert tokens(outputs)[-1] == EOS
    assert reason(outputs) is FinishReason.LENGTH


def test_failing_step_fails_its_request_and_others_go_on() -> None:
    stepper = make(runner=Broken())
    before = request("1", 5, 3)
    assert tokens(run(stepper, before)["1"]) == whole_text(before)
    (failure,) = run(stepper, request("13", 5, 3))["13"]
    assert isinstance(failure, CoreFailure)
    assert "RuntimeError" in failure.message
    after = request("2", 5, 3)
    assert tokens(run(stepper, after)["2"]) == whole_text(after)


def test_one_bad_row_fails_its_request_alone() -> None:
    others = [request("1", 5, 3), request("2", 40, 3)]
    said = run(make(sampler=NotANumber()), others[0], request("13", 5, 3), others[1])
    assert said["13"] == [CoreFailure("13", "broken", own=False)]
    assert [tokens(said[other.id]) for other in others] == [whole_text(other) for other in others]


def test_bad_row_at_the_end_of_a_text_is_a_failure_and_no_end() -> None:
    assert run(make(sampler=NotANumber()), request("13", 5, 1))["13"] == [CoreFailure("13", "broken")]


def test_prompt_logprobs_come_once_with_the_first_token() -> None:
    outputs = run(make(), request("1", 100, 3, prompt_logprobs=True))["1"]
    given = [output.prompt_logprobs for output in outputs if isinstance(output, CoreOutput)]
    assert given[0] == (None, *(-float(position) for position in range(1, 100)))
    assert set(given[1:]) <= {None}
    assert {output.prompt_top for output in outputs if isinstance(output, CoreOutput)} == {None}


def test_prompt_logprobs_of_a_prompt_that_was_preempted_come_once() -> None:
    limits = Limits(tokens=2, sequences=2, logit_rows=64)
    masks = ManualPool(VOCABULARY, ())
    stepper = Stepper(make_scheduler(5, limits), PaperRunner(), PaperSampler(), (), masks)
    stepper.add(request("1", PAGE - 1, 40))
    stepper.add(request("2", 40, 2, prompt_logprobs=True))
    given, preempted = [], 0
    while not stepper.idle:
        frame = stepper.step()
        assert frame.stats is not None
        preempted += frame.stats.preempted
        given += [
            each.prompt_logprobs for each in frame.outputs if isinstance(each, CoreOutput) and each.id == "2"
        ]
    assert preempted == 1  # by then the second prompt is computed in part
    assert given == [(None, *(-float(position) for position in range(1, 40))), None]


def test_statistics_count_every_token_once() -> None:
    stepper = make()
    stepper.add(request("1", 50, 4))
    frames: list[Frame] = []
    while not stepper.idle:
        frames.append(stepper.step())
    stats = [frame.stats for frame in frames if frame.stats is not None]
    assert [each.prefill_tokens for each in stats] == [32, 18, 0, 0, 0]
    assert [each.decode_sequences for each in stats] == [0, 0, 1, 1, 1]
    assert [each.admitted for each in stats] == [1, 0, 0, 0, 0]
    assert [each.kv_tokens for each in stats] == [32, 50, 51, 52, 0]


def test_fail_all_ends_every_request() -> None:
    stepper = make()
    stepper.add(request("1", 50, 4))
    stepper.add(request("2", 50, 4))
    stepper.step()
    assert {output.id for output in stepper.fail_all("stopped").outputs} == {"1", "2"}
    assert stepper.idle


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_aborted_request_says_nothing_more(when: str) -> None:
    stepper = make()
    stepper.add(request("1", 5, 100))
    if when == "running":
        stepper.step()
    stepper.abort("1")
    stepper.abort("1")
    assert stepper.idle


def test_choice_carries_the_samplers_numbers() -> None:
    class Sure(PaperSampler):
        def choose(self, work: Work, logits: list[int] | None) -> Chosen:
            return Chosen(np.array([3]), [-0.25], [((3, -0.25), (4, -2.0))])

    (output,) = run(make(sampler=Sure()), request("1", 4, 1))["1"]
    assert isinstance(output, CoreOutput)
    assert (output.token_id, output.logprob, output.top) == (3, -0.25, ((3, -0.25), (4, -2.0)))
    assert output.started > 0


def test_idle_books_that_do_not_balance_are_told_and_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(50, LIMITS)
    stepper = Stepper(scheduler, PaperRunner(), PaperSampler(), (EOS,), ManualPool(VOCABULARY, (EOS,)))
    first = request("1", 40, 3)
    assert tokens(run(stepper, first)["1"]) == whole_text(first)
    assert stepper.check_idle() == ()
    scheduler._pool.take(1)  # a block that nobody will give back
    (fault,) = stepper.check_idle()
    assert "block" in fault
    assert fault in caplog.text
    assert stepper.check_idle() == ()
    again = run(stepper, first)["1"]
    assert tokens(again) == whole_text(first)


class TwoPieces:
    """Has something to do twice, and remembers what it was told."""

    def __init__(self) -> None:
        self.high_water: list[int] = []

    def advance(self, high_water: int) -> bool:
        self.high_water.append(high_water)
        return len(self.high_water) <= 2


def test_idle_work_is_told_how_many_blocks_were_ever_in_use() -> None:
    work = TwoPieces()
    scheduler = make_scheduler(50, LIMITS)
    masks = ManualPool(VOCABULARY, (EOS,))
    stepper = Stepper(scheduler, PaperRunner(), PaperSampler(), (EOS,), masks, idle_work=work)
    assert stepper.work_while_idle()
    run(stepper, request("1", PAGE, 2 * PAGE))
    run(stepper, request("2", 1, 1))
    assert stepper.work_while_idle()
    assert not stepper.work_while_idle()
    assert work.high_water[0] == 0
    assert 2 <= work.high_water[1] == work.high_water[2] == scheduler.high_water <= 5
    stepper.add(request("3", 1, 1))
    with pytest.raises(AssertionError):
        stepper.work_while_idle()


def test_one_request_of_a_quiet_owner_passes_the_queue_of_a_busy_one() -> None:
    stepper = make()
    for index in range(40):
        stepper.add(request(str(index), 5, 20, owner="busy", ignore_eos=True))
    stepper.step()
    stepper.add(request("99", 5, 20, owner="quiet", ignore_eos=True))
    heard = [output.id for _ in range(21) for output in stepper.step().outputs]
    assert heard.count("99") >= 1


def test_long_prompt_and_decodes_go_on_while_requests_keep_coming() -> None:
    stepper = make()
    stepper.add(request("1", 200, 30, ignore_eos=True))
    heard: list[str] = []
    for step in range(80):
        stepper.add(request(str(step + 2), 10, 4, ignore_eos=True))
        heard += [output.id for output in stepper.step().outputs]
    assert heard.count("1") == 30


def test_tokens_found_in_the_cache_are_told_with_every_output_and_in_the_statistics() -> None:
    stepper = make()
    run(stepper, request("1", 3 * PAGE, 3, prefix=3 * PAGE))
    stepper.add(request("2", 3 * PAGE, 3, prefix=3 * PAGE))
    frames = []
    while not stepper.idle:
        frames.append(stepper.step())
    outputs = [output for frame in frames for output in frame.outputs]
    assert {output.cached_tokens for output in outputs if isinstance(output, CoreOutput)} == {2 * PAGE}
    assert [frame.stats.cached_tokens for frame in frames if frame.stats] == [2 * PAGE, 0, 0][: len(frames)]
    assert frames[0].stats is not None
    assert frames[0].stats.prefill_tokens == PAGE


def test_failed_request_leaves_nothing_to_be_found() -> None:
    stepper = make(sampler=NotANumber())
    run(stepper, request("13", 3 * PAGE, 3, prefix=3 * PAGE))
    (output, *_) = run(stepper, request("2", 3 * PAGE, 3, prefix=3 * PAGE))["2"]
    assert isinstance(output, CoreOutput)
    assert output.cached_tokens == 0


def test_a_step_that_fails_says_so_in_its_statistics() -> None:
    stepper = make(runner=Broken())
    stepper.add(request("13", 5, 3))
    stats = stepper.step().stats
    assert stats is not None
    assert (True, 0, 0, 5) == (stats.failed, stats.running, stats.waiting, stats.prefill_tokens)


def test_who_leaves_last_leaves_nothing_running_in_the_statistics() -> None:
    stepper = make()
    stepper.add(request("1", 5, 30))
    before = stepper.step().stats
    assert before is not None
    assert before.running == 1
    stepper.abort("1")
    stats = stepper.at_rest().stats
    assert stats is not None
    assert (0, 0, 0, 0.0) == (stats.running, stats.waiting, stats.kv_tokens, stats.forward_seconds)
