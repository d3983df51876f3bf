"""Steps that raise: the request by whose work they do fails alone, and all other texts stay what they are."""

from __future__ import annotations

import logging
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.isolation import FAILURES
from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.faults import StepLost
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason
from tests.unit.inference.engine.test_step_lives import GRAMMARS
from tests.unit.inference.faulty_paper import Fault, Faults, FaultyRunner, FaultySampler, Where
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar
from tests.unit.inference.paper_model import (
    EOS,
    VOCABULARY,
    PaperRunner,
    PaperSampler,
    make_scheduler,
    request,
    whole_text,
)

RULE = PaperGrammar(lambda text: {10 + len(text), 30} if len(text) < 6 else {EOS}, EOS)


class Bench:
    """A stepper over a paper model with faults, and what it said."""

    def __init__(
        self,
        faults: Faults,
        *,
        blocks: int = 300,
        tokens: int = 1024,
        sequences: int = 64,
        chunked: bool = True,
    ) -> None:
        limits = Limits(tokens=tokens, sequences=sequences, logit_rows=64, chunked=chunked)
        self.faults = faults
        self.masks = ManualPool(VOCABULARY, (EOS,))
        self.paper = PaperRunner()
        self.scheduler = make_scheduler(blocks, limits)
        self.stepper = self.make(self.scheduler)
        self.said: dict[str, list[CoreOutput | CoreFailure]] = {}
        self.stats: list[StepStats] = []

    def make(self, scheduler: Scheduler) -> Stepper[list[int]]:
        runner, sampler = FaultyRunner(self.paper, self.faults), FaultySampler(PaperSampler(), self.faults)
        return Stepper(scheduler, runner, sampler, (EOS,), self.masks)

    def add(self, *wanted: CoreRequest) -> None:
        for each in wanted:
            self.said[each.id] = []
            self.stepper.add(each)

    def step(self) -> None:
        frame = self.stepper.step()
        self.stats += [frame.stats] if frame.stats else []
        for output in frame.outputs:
            assert not self.ended(output.id), f"{output.id} had ended"
            self.said[output.id].append(output)
        assert self.scheduler.check() == []

    def run(self, *wanted: CoreRequest, patience: int = 1) -> None:
        """Run until all have ended; masks are filled every so many steps."""
        self.add(*wanted)
        for step in range(3000):
            if self.stepper.idle:
                break
            self.step()
            while self.masks.asked and not step % patience:
                self.masks.fill()
        assert self.stepper.check_idle() == ()
        assert all(self.ended(each.id) for each in wanted)

    def ended(self, id: str) -> bool:
        last = self.said[id][-1] if self.said[id] else None
        return isinstance(last, CoreFailure) or (last is not None and last.finish is not None)

    def failure(self, id: str) -> CoreFailure | None:
        last = self.said[id][-1]
        return last if isinstance(last, CoreFailure) else None

    def tokens(self, id: str) -> list[int]:
        return [output.token_id for output in self.said[id] if isinstance(output, CoreOutput)]

    @property
    def failed(self) -> set[str]:
        return {id for id in self.said if self.failure(id)}


def crowd(count: int, tokens: int = 8) -> list[CoreRequest]:
    return [request(str(index), 5 + index % 7, tokens, ignore_eos=True) for index in range(count)]


@pytest.mark.parametrize("where", [Where.RUNNER, Where.SAMPLER])
@pytest.mark.parametrize("guilty", ["0", "31", "40", "63"])
@pytest.mark.parametrize("generated", [0, 3])
def test_one_among_many_is_found_by_few_steps(where: Where, guilty: str, generated: int) -> None:
    bench, wanted = Bench(Faults({guilty: Fault(where, generated)})), crowd(64)
    bench.run(*wanted)
    assert bench.failed == {guilty}
    assert bench.tokens(guilty) == whole_text(wanted[int(guilty)])[:generated]
    assert [bench.tokens(each.id) for each in wanted if each.id != guilty] == [
        whole_text(each) for each in wanted if each.id != guilty
    ]
    assert sum(each.again for each in bench.stats) == 2 * log2(64)
    assert sum(each.failed for each in bench.stats) == log2(64) + 1


def test_who_is_known_to_have_failed_fails_at_once_and_the_others_are_computed_once_more() -> None:
    bench, wanted = Bench(Faults({"5": Fault(Where.RUNNER_SAYS_WHO, 2)})), crowd(32)
    bench.run(*wanted)
    assert bench.failed == {"5"}
    assert sum(each.again for each in bench.stats) == 1
    assert [bench.tokens(str(at)) for at in range(32) if at != 5] == [
        whole_text(each) for each in wanted if each.id != "5"
    ]


def test_failure_says_what_failed_and_whose_and_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Faults({"1": Fault(Where.RUNNER, 1)}))
    with caplog.at_level(logging.WARNING):
        bench.run(*crowd(4))
    failure = bench.failure("1")
    assert failure is not None
    assert "request 1" in failure.message
    assert "ArithmeticError" in failure.message
    assert "a number that isn't" not in failure.message
    assert not failure.own
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.exc_info is not None
    assert "1" in told.getMessage()


def test_step_that_fails_by_chance_loses_nobody() -> None:
    bench, wanted = Bench(Faults()), crowd(8)
    bench.add(*wanted)
    bench.step()
    bench.faults.once = True
    bench.run()
    assert bench.faults.raised == 1
    assert [bench.tokens(each.id) for each in wanted] == [whole_text(each) for each in wanted]


@pytest.mark.parametrize("generated", [-1, 4])
def test_model_that_fails_whatever_it_computes_is_not_tried_for_ever(generated: int) -> None:
    bench = Bench(Faults())
    bench.add(*crowd(64))
    if generated > 0:
        bench.step()
    bench.faults.broken = True
    bench.run()
    assert bench.failed == {str(index) for index in range(64)}
    assert bench.faults.raised == FAILURES
    for times in range(3):  # until something goes well, others cost a few steps
        before = bench.faults.raised
        bench.run(*(request(str(100 + 10 * times + index), 5, 5) for index in range(8)))
        assert bench.faults.raised - before == 3
    bench.faults.broken = False
    bench.faults["300"] = Fault(Where.RUNNER, 2)
    wanted = [request(str(300 + index), 9, 6, ignore_eos=True) for index in range(16)]
    bench.run(*wanted)
    assert "300" in bench.failed
    assert [bench.tokens(each.id) for each in wanted[1:]] == [whole_text(each) for each in wanted[1:]]


def test_requests_that_fail_one_after_another_do_not_count_against_those_that_come_together() -> None:
    faults = Faults({str(index): Fault(Where.RUNNER, -1) for index in range(2 * FAILURES)})
    bench = Bench(faults)
    for index in range(2 * FAILURES):
        bench.run(request(str(index), 5, 5))
    faults["101"] = Fault(Where.RUNNER, -1)
    bench.run(*(request(str(100 + index), 5, 5) for index in range(8)))
    assert bench.failed - set(map(str, range(2 * FAILURES))) == {"101"}


def test_parts_that_were_aborted_meanwhile_are_not_computed() -> None:
    bench, wanted = Bench(Faults({"0": Fault(Where.RUNNER, 1)})), crowd(8)
    bench.add(*wanted)
    bench.step()
    bench.step()  # fails
    for id in ("0", "4", "5", "6", "7"):
        bench.stepper.abort(id)
    while not bench.stepper.idle:
        bench.step()
    assert bench.failed == set()
    assert [len(bench.said[str(at)]) for at in (0, 4, 5, 6, 7)] == [1] * 5
    assert sum(each.failed for each in bench.stats) == 1
    assert [bench.tokens(str(at)) for at in (1, 2, 3)] == [whole_text(each) for each in wanted[1:4]]
    assert bench.stepper.check_idle() == ()


def test_who_comes_while_parts_are_computed_is_served_after_them() -> None:
    bench = Bench(Faults({"3": Fault(Where.RUNNER, 0)}))
    bench.add(*crowd(8))
    bench.step()
    late = request("20", 6, 4, ignore_eos=True)
    bench.run(late)
    assert bench.failed == {"3"}
    assert bench.tokens("20") == whole_text(late)


def test_memory_that_is_too_short_for_a_part_makes_steps_smaller_and_nobody_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, wanted = Bench(Faults({"2": Fault(Where.RUNNER, 1)})), crowd(8)
    bench.add(*wanted)
    bench.step()
    bench.step()  # fails
    with monkeypatch.context() as patch:
        patch.setattr(bench.paper, "run", lambda pieces, tokens_only: bytearray(2**62))
        bench.step()
        bench.step()
    assert bench.stats[-1].preempted
    bench.run()
    assert bench.failed == {"2"}
    assert [bench.tokens(each.id) for each in wanted if each.id != "2"] == [
        whole_text(each) for each in wanted if each.id != "2"
    ]


def test_fault_of_one_who_waited_for_its_mask_leaves_the_step_beside_it_alone() -> None:
    bench = Bench(Faults({"1": Fault(Where.SAMPLER, 0)}))
    guided = [request(str(index), 5, 12, grammar=RULE) for index in (0, 1)]
    plain = [request(str(index), 5, 12, ignore_eos=True) for index in (2, 3)]
    bench.run(*guided, *plain, patience=3)
    assert bench.failed == {"1"}
    assert [bench.tokens(each.id) for each in (guided[0], *plain)] == [
        whole_text(each) for each in (guided[0], *plain)
    ]


def test_row_that_is_held_by_a_step_that_fails_is_held_no_more() -> None:
    bench = Bench(Faults({"2": Fault(Where.SAMPLER, 0)}))
    guided = request("0", 5, 12, grammar=RULE)
    plain = [request(str(index), 5, 12, ignore_eos=True) for index in (1, 2, 3)]
    bench.run(guided, *plain)
    assert bench.failed == {"2"}
    assert bench.tokens("0") == whole_text(guided)


@pytest.mark.parametrize("work", ["begin", "advance"])
def test_grammar_that_raises_fails_its_request_alone(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise RuntimeError("can't start new thread")

    bench = Bench(Faults())
    wanted = [request(str(index), 5, 12, grammar=RULE) for index in range(3)]
    bench.add(*wanted)
    monkeypatch.setattr(bench.stepper._sequences["1"].guide, work, fail)
    bench.run()
    assert bench.failed == {"1"}
    assert [bench.tokens(str(at)) for at in (0, 2)] == [whole_text(wanted[0]), whole_text(wanted[2])]


def test_step_of_which_nothing_is_known_any_more_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise StepLost("the device can't be told what to go on from")

    bench = Bench(Faults())
    bench.add(*crowd(4))
    with monkeypatch.context() as patch:
        patch.setattr(bench.paper, "run", lose)
        bench.step()
    assert bench.failed == {"0", "1", "2", "3"}
    assert bench.stepper.check_idle() == ()


def test_what_failed_is_not_found_in_the_cache() -> None:
    bench = Bench(Faults({"0": Fault(Where.RUNNER, 2)}))
    bench.run(request("0", 3 * PAGE, 5, prefix=3 * PAGE, ignore_eos=True))
    bench.run(request("1", 3 * PAGE, 5, prefix=3 * PAGE, ignore_eos=True))
    (output, *_) = bench.said["1"]
    assert isinstance(output, CoreOutput)
    assert output.cached_tokens == 0


def test_statistics_count_who_was_admitted_once_whatever_failed() -> None:
    bench = Bench(Faults({"1": Fault(Where.RUNNER, -1), "6": Fault(Where.RUNNER, 0)}))
    bench.run(*crowd(8))
    assert sum(each.admitted for each in bench.stats if not each.failed) == 8
    good = [each for each in bench.stats if not each.failed]
    assert sum(each.decode_sequences for each in good) == 6 * 7


ASKED = st.fixed_dictionaries(
    {
        "length": st.integers(1, 50),
        "tokens": st.integers(1, 30),
        "prompt_logprobs": st.sampled_from([False, False, True]),
        "grammar": st.sampled_from([None, None, *GRAMMARS]),
        "prefix": st.sampled_from([0, 16, 40, 50]),
        "ignore_eos": st.booleans(),
        "owner": st.sampled_from("ab"),
    }
)
FAULT = st.builds(Fault, st.sampled_from(Where), st.sampled_from([-1, 0, 1, 2, 5]))


@settings(max_examples=80, deadline=None)
@given(
    asked=st.lists(ASKED, min_size=2, max_size=10),
    faults=st.lists(st.none() | FAULT, min_size=4, max_size=4),
    order=st.randoms(use_true_random=False),
    blocks=st.integers(6, 40),
    budget=st.sampled_from([8, 24, 200]),
    chunked=st.booleans(),
    patience=st.integers(1, 4),
)
def test_exactly_those_with_faults_fail_and_all_texts_are_what_they_were(
    asked: list[dict[str, object]],
    faults: list[Fault | None],
    order: Random,
    blocks: int,
    budget: int,
    chunked: bool,
    patience: int,
) -> None:
    ids = list(map(str, range(len(asked))))
    order.shuffle(ids)
    given = Faults({id: fault for id, fault in zip(ids, faults, strict=False) if fault is not None})
    bench = Bench(given, blocks=blocks, tokens=budget, sequences=8, chunked=chunked)
    wanted = [request(str(index), **each) for index, each in enumerate(asked)]  # type: ignore[arg-type]
    bench.run(*wanted, patience=patience)
    for each in wanted:
        text, fault = whole_text(each), given.get(each.id)
        if fault is None or fault.generated >= len(text):
            assert bench.tokens(each.id) == text
            assert bench.failure(each.id) is None
            last = bench.said[each.id][-1]
            assert isinstance(last, CoreOutput)
            assert (last.finish is FinishReason.LENGTH) == (len(text) == each.max_new_tokens)
        else:
            assert bench.failure(each.id) is not None
            assert bench.tokens(each.id) == text[: max(fault.generated, 0)]
