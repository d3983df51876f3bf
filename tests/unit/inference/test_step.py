from __future__ import annotations

from collections.abc import Sequence as Several

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from inference.blocks import PAGE, BlockPool
from inference.scheduler import Limits, Scheduler
from inference.state import Choice, Chosen, Chunk
from inference.step import Stepper
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason, Frame
from tests.unit.inference.paper_model import EOS, PaperRunner, PaperSampler, request, whole_text

LIMITS = Limits(tokens=32, sequences=8, logit_rows=64)


class Broken(PaperRunner):
    """Fails on every step that holds the sequence named "13"."""

    def run(self, chunks: Several[Chunk]) -> list[int | None]:
        if any(chunk.sequence.id == "13" for chunk in chunks):
            raise RuntimeError("out of luck")
        return super().run(chunks)


class NotANumber(PaperSampler):
    """Finds the logits of the sequence named "13" broken."""

    def choose(self, chunks: Several[Chunk], logits: list[int | None]) -> list[Chosen]:
        results = super().choose(chunks, logits)
        return [
            Chosen(failure="broken") if chunk.sequence.id == "13" else result
            for chunk, result in zip(chunks, results, strict=True)
        ]


def make(runner: PaperRunner | None = None, sampler: PaperSampler | None = None) -> Stepper[list[int | None]]:
    scheduler = Scheduler(BlockPool(50), LIMITS)
    return Stepper(scheduler, runner or PaperRunner(), sampler or PaperSampler(), (EOS,))


def run(
    stepper: Stepper[list[int | None]], *requests: CoreRequest
) -> dict[str, list[CoreOutput | CoreFailure]]:
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


def test_failing_step_fails_its_requests_and_the_others_go_on() -> None:
    stepper = make(runner=Broken())
    before = request("1", 5, 3)
    assert tokens(run(stepper, before)["1"]) == whole_text(before)
    (failure,) = run(stepper, request("13", 5, 3))["13"]
    assert isinstance(failure, CoreFailure)
    assert "out of luck" in failure.message
    after = request("2", 5, 3)
    assert tokens(run(stepper, after)["2"]) == whole_text(after)


def test_one_bad_row_fails_its_request_alone() -> None:
    others = [request("1", 5, 3), request("2", 40, 3)]
    said = run(make(sampler=NotANumber()), others[0], request("13", 5, 3), others[1])
    assert said["13"] == [CoreFailure("13", "broken")]
    assert [tokens(said[other.id]) for other in others] == [whole_text(other) for other in others]


def test_prompt_logprobs_come_once_with_the_first_token() -> None:
    outputs = run(make(), request("1", 100, 3, prompt_logprobs=True))["1"]
    given = [output.prompt_logprobs for output in outputs if isinstance(output, CoreOutput)]
    assert given[0] == (None, *(-float(position) for position in range(1, 100)))
    assert set(given[1:]) <= {None}


def test_prompt_logprobs_of_a_prompt_that_was_preempted_come_once() -> None:
    limits = Limits(tokens=2, sequences=2, logit_rows=64)
    stepper = Stepper(Scheduler(BlockPool(5), limits), PaperRunner(), PaperSampler(), ())
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


class Lives(RuleBasedStateMachine):
    """Requests come, run, are preempted and aborted in any order; none may be lost or disturbed."""

    live: Bundle[str] = Bundle("live")

    @initialize(blocks=st.integers(3, 12), budget=st.integers(4, 40), chunked=st.booleans())
    def begin(self, blocks: int, budget: int, chunked: bool) -> None:
        self.pool = BlockPool(blocks)
        self.budget = budget
        self.chunked = chunked
        limits = Limits(tokens=budget, sequences=4, logit_rows=10, chunked=chunked)
        self.scheduler = Scheduler(self.pool, limits)
        self.runner = PaperRunner()
        self.stepper = Stepper(self.scheduler, self.runner, PaperSampler(), (EOS,))
        self.requests: dict[str, CoreRequest] = {}
        self.said: dict[str, list[CoreOutput]] = {}
        self.aborted: set[str] = set()

    @rule(target=live, length=st.integers(1, 40), new=st.integers(1, 40), logprobs=st.booleans())
    def submit(self, length: int, new: int, logprobs: bool) -> str:
        capacity = self.pool.size * PAGE
        length = min(length, capacity - 1)
        wanted = request(
            str(len(self.requests)), length, min(new, capacity - length), prompt_logprobs=logprobs
        )
        self.requests[wanted.id] = wanted
        self.said[wanted.id] = []
        self.stepper.add(wanted)
        return wanted.id

    @rule(id=consumes(live))
    def abort(self, id: str) -> None:
        if not self.said[id] or self.said[id][-1].finish is None:
            self.aborted.add(id)
        self.stepper.abort(id)

    @rule(times=st.integers(1, 30))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.stepper.idle:
                self.hear(self.stepper.step())

    def hear(self, frame: Frame) -> None:
        for output in frame.outputs:
            assert isinstance(output, CoreOutput)
            assert output.id not in self.aborted
            said = self.said[output.id]
            assert not said or said[-1].finish is None
            said.append(output)

    @invariant()
    def blocks_are_conserved(self) -> None:
        held = [block for sequence in self.scheduler.running for block in sequence.blocks]
        assert sorted(held) == sorted(self.pool.held)
        assert self.pool.free + len(held) == self.pool.size
        assert not any(sequence.blocks for sequence in self.scheduler.waiting)

    @invariant()
    def limits_are_kept(self) -> None:
        assert len(self.scheduler.running) <= 4
        if self.chunked:
            assert all(sum(sizes) <= self.budget for sizes in self.runner.steps)
            assert all(rows <= 10 + 4 for rows in self.runner.rows)
        assert all(sizes for sizes in self.runner.steps)

    def teardown(self) -> None:
        while not self.stepper.idle:
            self.hear(self.stepper.step())
        assert self.pool.free == self.pool.size
        for id, wanted in self.requests.items():
            heard = [output.token_id for output in self.said[id]]
            expected = whole_text(wanted)
            if id in self.aborted:
                assert heard == expected[: len(heard)]
                continue
            assert heard == expected
            assert [output.finish is not None for output in self.said[id]].count(True) == 1
            if wanted.prompt_logprobs:
                logprobs = self.said[id][0].prompt_logprobs
                assert logprobs == (None, *(-float(at) for at in range(1, len(wanted.prompt_ids))))


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_choice_carries_the_samplers_numbers() -> None:
    class Sure(PaperSampler):
        def choose(self, chunks: Several[Chunk], logits: list[int | None]) -> list[Chosen]:
            return [Chosen(choice=Choice(3, -0.25, ((3, -0.25), (4, -2.0)))) for _ in chunks]

    (output,) = run(make(sampler=Sure()), request("1", 4, 1))["1"]
    assert isinstance(output, CoreOutput)
    assert (output.token_id, output.logprob, output.top) == (3, -0.25, ((3, -0.25), (4, -2.0)))
    assert output.started > 0
