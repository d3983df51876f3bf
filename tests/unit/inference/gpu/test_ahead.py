"""Steps begun ahead: the same texts as without, whatever comes, ends or is aborted meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from inference.engine.ahead import AheadStepper
from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE, BlockPool
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.chosen import Chosen
from inference.sequences.state import Pieces, SlotTable
from inference.sequences.work import Work
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason
from tests.unit.inference.engine.test_step_fates import FaultyFates
from tests.unit.inference.engine.test_step_lives import Lives
from tests.unit.inference.faulty_paper import Fault, Faults, FaultyRunner, FaultySampler, Where
from tests.unit.inference.gpu.paper_device import PaperDevice, PaperDeviceSampler, PaperLaunch
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar
from tests.unit.inference.paper_model import EOS, VOCABULARY, request, whole_text


class Bench:
    """A stepper over a paper device, and what it said."""

    def __init__(self, *, blocks: int = 12, ahead: bool = True, sequences: int = 4) -> None:
        limits = Limits(tokens=40, sequences=sequences, logit_rows=10)
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(self.pool, limits, SlotTable(sequences, blocks))
        self.device = PaperDevice()
        kind = AheadStepper if ahead else Stepper
        masks = ManualPool(VOCABULARY, (EOS,))
        self.sampler = PaperDeviceSampler(self.device)
        self.stepper = kind(self.scheduler, self.device, self.sampler, (EOS,), masks)
        self.said: dict[str, list[CoreOutput | CoreFailure]] = {}
        self.preempted = 0

    def step(self) -> None:
        frame = self.stepper.step()
        self.preempted += frame.stats.preempted if frame.stats else 0
        for output in frame.outputs:
            self.said.setdefault(output.id, []).append(output)

    def finish(self) -> None:
        while not self.stepper.idle:
            self.step()
        assert self.stepper.check_idle() == ()

    def tokens(self, id: str) -> list[int]:
        return [output.token_id for output in self.said[id] if isinstance(output, CoreOutput)]

    def add(self, *wanted: CoreRequest) -> None:
        for each in wanted:
            self.stepper.add(each)


def until_eos(at_least: int) -> CoreRequest:
    """Return a request whose text ends with EOS after some tokens."""
    requests = (request(str(id), 5, 100) for id in range(1000))
    return next(each for each in requests if at_least <= len(whole_text(each)) < 100)


def test_a_step_is_begun_before_the_one_before_it_is_read() -> None:
    bench = Bench()
    bench.add(request("0", 5, 6, ignore_eos=True))
    bench.step()
    assert len(bench.device.launched) == 2
    assert len(bench.said["0"]) == 1
    bench.finish()
    assert len(bench.device.launched) == 6  # an end by length is known: nothing is begun in vain
    assert bench.tokens("0") == whole_text(request("0", 5, 6, ignore_eos=True))


def test_token_behind_eos_is_computed_and_nobody_hears_of_it() -> None:
    wanted, bench = until_eos(3), Bench()
    bench.add(wanted)
    bench.finish()
    assert bench.tokens(wanted.id) == whole_text(wanted)
    assert len(bench.device.launched) == len(whole_text(wanted)) + 1
    last = bench.said[wanted.id][-1]
    assert isinstance(last, CoreOutput)
    assert last.finish is FinishReason.EOS


def test_slot_of_an_aborted_request_is_given_on_while_its_step_is_on_its_way() -> None:
    bench = Bench(sequences=1)
    first, second = request("0", 5, 30, ignore_eos=True), request("1", 20, 9, ignore_eos=True)
    bench.add(first)
    bench.step()
    bench.stepper.abort("0")
    bench.add(second)
    bench.finish()
    assert bench.tokens("1") == whole_text(second)
    assert len(bench.said["0"]) == 1


def test_step_that_cannot_be_begun_fails_its_request_after_its_last_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    wanted = request("0", 5, 30, ignore_eos=True)
    bench.add(wanted)
    bench.step()
    with monkeypatch.context() as patch:
        patch.setattr(bench.device, "run", lambda pieces: 1 / 0)
        bench.step()
    bench.finish()
    assert bench.tokens("0") == whole_text(wanted)[:2]
    failure = bench.said["0"][-1]
    assert isinstance(failure, CoreFailure)
    assert "ZeroDivisionError" in failure.message
    bench.add(request("1", 5, 4, ignore_eos=True))
    bench.finish()
    assert len(bench.tokens("1")) == 4


def test_step_for_which_memory_is_too_short_is_made_smaller_and_no_text_changes() -> None:
    bench, wanted = Bench(), [request(str(id), 20, 9, ignore_eos=True) for id in range(4)]
    run, sizes = bench.device.run, []

    def short(pieces: Pieces, *, tokens_only: bool = False) -> PaperLaunch:
        sizes.append(len(pieces.ids))
        if len(sizes) == 4:
            raise MemoryError("no paper left")
        return run(pieces, tokens_only=tokens_only)

    bench.device.run = short  # type: ignore[method-assign]
    bench.add(*wanted)
    bench.finish()
    assert [bench.tokens(each.id) for each in wanted] == [whole_text(each) for each in wanted]
    assert bench.preempted == 2


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_step_for_whose_choice_memory_is_too_short_is_computed_again(at: int) -> None:
    bench = Bench(blocks=20)
    wanted = [
        request(str(id), 20, 9, ignore_eos=True, prompt_logprobs=bool(id % 2), top=id % 2, min_tokens=2)
        for id in range(4)
    ]
    choose, calls = bench.sampler.choose, 0

    def short(work: Work, launched: PaperLaunch | None) -> Chosen:
        nonlocal calls
        calls += 1
        if calls == at:
            for sequence in work.pieces.sampling:  # as the device's sampler does
                bench.device.newest[sequence.slot] = int(sequence.ids[-1])
            raise MemoryError("no paper left")
        return choose(work, launched)

    bench.sampler.choose = short  # type: ignore[method-assign]
    bench.add(*wanted)
    bench.finish()
    assert calls > at
    assert bench.preempted
    assert [bench.tokens(each.id) for each in wanted] == [whole_text(each) for each in wanted]
    for each in wanted:
        first = bench.said[each.id][0]
        assert isinstance(first, CoreOutput)
        if each.prompt_logprobs:
            assert first.prompt_logprobs is not None
            assert len(first.prompt_logprobs) == len(each.prompt_ids)


def test_step_that_cannot_be_read_fails_what_was_begun_upon_it_and_nothing_later() -> None:
    bench = Bench()
    bench.add(request("0", 5, 30, ignore_eos=True))
    bench.step()
    bench.add(request("1", 5, 30, ignore_eos=True))
    bench.device.launched[-1].broken = True
    bench.step()
    later = request("2", 5, 8, ignore_eos=True)
    bench.add(later)
    bench.finish()
    assert {id for id, said in bench.said.items() if isinstance(said[-1], CoreFailure)} == {"0", "1"}
    assert bench.tokens("2") == whole_text(later)


def test_request_that_the_host_chooses_for_is_read_before_the_next_step_begins() -> None:
    bench = Bench()
    plain, asker = request("0", 5, 9, ignore_eos=True), request("1", 5, 9, ignore_eos=True, min_tokens=3)
    bench.add(plain, asker)
    bench.step()
    assert len(bench.device.launched) == 1
    bench.finish()
    assert (bench.tokens("0"), bench.tokens("1")) == (whole_text(plain), whole_text(asker))


def test_texts_are_whole_before_one_is_preempted() -> None:
    bench, wanted = Bench(blocks=5), [request(str(id), 20, 35, ignore_eos=True) for id in range(2)]
    bench.add(*wanted)
    bench.finish()
    assert [bench.tokens(each.id) for each in wanted] == [whole_text(each) for each in wanted]
    assert bench.preempted == 1


def test_statistics_count_every_token_once() -> None:
    bench = Bench()
    bench.add(request("0", 5, 6, ignore_eos=True), request("1", 7, 3, ignore_eos=True))
    frames = []
    while not bench.stepper.idle:
        frames.append(bench.stepper.step())
    stats = [frame.stats for frame in frames if frame.stats is not None]
    assert sum(each.prefill_tokens for each in stats) == 12
    assert sum(each.decode_sequences for each in stats) == 5 + 2
    assert sum(each.admitted for each in stats) == 2
    assert all(each.forward_seconds >= 0 and each.sample_seconds >= 0 for each in stats)


class AheadLives(Lives):
    """The same lives, a step ahead; what the table has beyond what was said is being chosen."""

    @initialize(blocks=st.integers(3, 12), budget=st.integers(4, 40), caching=st.booleans())
    def begin(self, blocks: int, budget: int, caching: bool) -> None:
        self.pool = BlockPool(blocks)
        self.table = SlotTable(4, blocks)
        self.budget, self.chunked, self.caching = budget, True, caching
        limits = Limits(tokens=budget, sequences=4, logit_rows=10)
        self.scheduler = Scheduler(self.pool, limits, self.table, prefix_caching=caching)
        self.masks = ManualPool(VOCABULARY, (EOS,))
        device = PaperDevice()
        self.runner = device
        self.stepper = AheadStepper(  # type: ignore[assignment]
            self.scheduler,
            device,
            PaperDeviceSampler(device),
            (EOS,),
            self.masks,
        )
        self.requests = {}
        self.said = {}
        self.aborted = set()

    @invariant()
    def the_table_says_what_the_sequences_are(self) -> None:
        for sequence in self.scheduler.running:
            text = [output.token_id for output in self.said[sequence.id]]
            known = [*sequence.request.prompt_ids, *text]
            assert sequence.ids.tolist()[: len(known)] == known
            assert len(known) <= sequence.length <= len(known) + 1
            assert self.table.blocks[sequence.slot, : len(sequence.blocks)].tolist() == sequence.blocks
            assert sequence.computed <= self.table.room[sequence.slot] == len(sequence.blocks) * PAGE
            assert sequence.published * PAGE <= len(known)  # what is shared is known
        assert len({sequence.slot for sequence in self.scheduler.running}) == len(self.scheduler.running)

    @invariant()
    def only_who_waits_for_a_mask_is_parked(self) -> None:
        assert all(sequence.held is None for sequence in self.scheduler.waiting)


TestAheadLives = AheadLives.TestCase
TestAheadLives.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("choosing", [False, True])
@pytest.mark.parametrize("generated", [0, 1, 4])
@pytest.mark.parametrize("guilty", ["0", "3"])
def test_step_that_fails_is_computed_again_without_the_one_by_whose_work_it_did(
    guilty: str, generated: int, *, choosing: bool
) -> None:
    bench = Bench(blocks=20)
    wanted = [
        request(
            str(id), 20, 9, ignore_eos=True, prompt_logprobs=choosing and id == 1, min_tokens=int(choosing)
        )
        for id in range(4)
    ]
    faults = Faults({guilty: Fault(Where.SAMPLER if choosing else Where.RUNNER, generated)})
    bench.stepper._runner = FaultyRunner(bench.device, faults)
    bench.stepper._sampler = FaultySampler(bench.sampler, faults, bench.device.newest)
    bench.add(*wanted)
    bench.finish()
    assert isinstance(bench.said[guilty][-1], CoreFailure)
    assert bench.tokens(guilty) == whole_text(wanted[int(guilty)])[:generated]
    others = [each for each in wanted if each.id != guilty]
    assert [bench.tokens(each.id) for each in others] == [whole_text(each) for each in others]
    assert not bench.preempted
    assert 2 <= faults.raised <= 3  # it was in a step with one or three others


def test_fault_of_one_who_waited_for_its_mask_is_found_beside_the_step_that_it_waited_for() -> None:
    bench, masks = Bench(blocks=20), ManualPool(VOCABULARY, (EOS,))
    faults = Faults({"1": Fault(Where.SAMPLER, 0)})
    bench.stepper._masks = masks
    bench.stepper._sampler = FaultySampler(bench.sampler, faults, bench.device.newest)
    rule = PaperGrammar(lambda text: {10 + len(text), 30} if len(text) < 6 else {EOS}, EOS)
    guided = [request(str(id), 5, 12, grammar=rule) for id in (0, 1)]
    plain = request("2", 5, 40, ignore_eos=True)
    bench.add(*guided, plain)
    for step in range(200):
        if not bench.stepper.idle:
            bench.step()
        while masks.asked and step % 3:
            masks.fill()
    assert bench.stepper.idle
    assert isinstance(bench.said["1"][-1], CoreFailure)
    assert faults.raised <= 3
    assert [bench.tokens(each.id) for each in (guided[0], plain)] == [
        whole_text(guided[0]),
        whole_text(plain),
    ]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't wait")])
def test_step_whose_masks_cannot_be_asked_for_gives_no_wrong_text(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, masks = Bench(blocks=20), ManualPool(VOCABULARY, (EOS,))
    bench.stepper._masks = masks
    rule = PaperGrammar(lambda text: {10 + len(text), 30} if len(text) < 6 else {EOS}, EOS)
    wanted = [request("0", 5, 12, grammar=rule), request("1", 5, 12, ignore_eos=True)]
    wait, times = masks.wait, 0

    def fail(*guides: Any) -> None:
        nonlocal times
        times += 1
        if times == 4:
            raise error
        wait(*guides)

    monkeypatch.setattr(masks, "wait", fail)
    bench.add(*wanted)
    while not bench.stepper.idle:
        bench.step()
        while masks.asked:
            masks.fill()
    assert isinstance(bench.said["1"][-1], CoreFailure)
    for each in wanted:
        tokens = bench.tokens(each.id)
        assert tokens == whole_text(each)[: len(tokens)]


class FaultyAheadLives(FaultyFates, AheadLives):
    """The same lives with faults."""

    @initialize(blocks=st.integers(3, 12), budget=st.integers(4, 40), caching=st.booleans())
    def begin(self, blocks: int, budget: int, caching: bool) -> None:
        AheadLives.begin(self, blocks, budget, caching)
        self.arm()


TestFaultyAheadLives = FaultyAheadLives.TestCase
TestFaultyAheadLives.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
