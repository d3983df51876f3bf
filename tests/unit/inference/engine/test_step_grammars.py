"""Steps with grammars: masks that come late, sequences that wait for them, and how texts end."""

from __future__ import annotations

import pytest

from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE
from inference.types import CoreFailure, CoreOutput, FinishReason, Frame
from tests.unit.inference.engine.test_step import LIMITS, Broken, make, reason, run, tokens
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar, PaperMatcher
from tests.unit.inference.paper_model import (
    EOS,
    VOCABULARY,
    PaperRunner,
    PaperSampler,
    make_scheduler,
    request,
    whole_text,
)

RULE = PaperGrammar(lambda text: {10 + len(text), 30, EOS} if len(text) < 6 else {EOS}, EOS)


def guided(blocks: int = 50, eos: tuple[int, ...] = (EOS,)) -> tuple[Stepper[list[int]], ManualPool]:
    masks = ManualPool(VOCABULARY, eos)
    scheduler = make_scheduler(blocks, LIMITS)
    return Stepper(scheduler, PaperRunner(), PaperSampler(), eos, masks), masks


def finish_all(stepper: Stepper[list[int]], masks: ManualPool) -> list[CoreOutput | CoreFailure]:
    said: list[CoreOutput | CoreFailure] = []
    while not stepper.idle:
        said += stepper.step().outputs
        while masks.asked:
            masks.fill()
    return said


def test_others_go_on_while_one_waits_for_its_mask() -> None:
    stepper, masks = guided()
    others = [request(str(each), 4, 20, ignore_eos=True) for each in range(7)]
    waits = request("13", 4, 20, grammar=RULE)
    for each in (waits, *others):
        stepper.add(each)
    heard = [output.id for _ in range(20) for output in stepper.step().outputs]
    assert sorted(heard) == sorted(other.id for other in others for _ in range(20))
    assert stepper.step() == Frame(())
    stuck = [stepper.stuck]
    masks.fill()
    assert [*stuck, stepper.stuck] == [True, False]
    assert tokens(finish_all(stepper, masks)) == whole_text(waits)


def test_mask_is_asked_for_with_the_first_piece_of_the_prompt_and_with_each_token() -> None:
    stepper, masks = guided()
    stepper.add(request("1", 80, 20, grammar=PaperGrammar(lambda text: {30})))
    assert masks.asked == []
    stepper.step()  # the first of three pieces
    masks.fill()
    stepper.step()
    assert masks.asked == []
    stepper.step()
    assert len(masks.asked) == 1


def test_resumed_sequence_is_chosen_beside_those_of_the_step() -> None:
    stepper, masks = guided()
    stepper.add(request("1", 5, 20, grammar=RULE))
    stepper.add(request("2", 5, 20, ignore_eos=True))
    stepper.step()
    masks.fill()
    frame = stepper.step()
    assert {output.id for output in frame.outputs} == {"1", "2"}
    assert frame.stats is not None
    assert frame.stats.decode_sequences == 1


def test_parked_sequence_that_is_preempted_is_computed_again() -> None:
    stepper, masks = guided(blocks=4)
    parked = request("2", PAGE + 4, 10, grammar=RULE)
    grows = request("1", PAGE - 2, 2 * PAGE, ignore_eos=True)
    stepper.add(grows)
    stepper.add(parked)
    said: list[CoreOutput | CoreFailure] = []
    preempted = 0
    while not preempted:
        frame = stepper.step()
        assert frame.stats is not None
        said += frame.outputs
        preempted += frame.stats.preempted
    assert {output.id for output in said} == {"1"}
    said += finish_all(stepper, masks)
    assert tokens([output for output in said if output.id == "1"]) == whole_text(grows)
    assert tokens([output for output in said if output.id == "2"]) == whole_text(parked)


def test_who_gave_way_to_itself_comes_back_though_others_wait_for_their_masks() -> None:
    free = PaperGrammar(lambda text: range(VOCABULARY), EOS)
    stepper, _ = guided(blocks=6)
    for id, length, new, grammar, owner in (
        ("1", 10, 3, None, "a"),
        ("2", 10, 5, free, "p"),  # its mask doesn't come
        ("3", 40, 5, None, "a"),
        ("4", 10, 85, None, "d"),  # alone in the end, and too long beside the second
    ):
        stepper.add(request(id, length, new, grammar=grammar, owner=owner, ignore_eos=True))
    preempted = 0
    while not preempted:
        assert not stepper.stuck
        stats = stepper.step().stats
        preempted = stats.preempted if stats else 0
    assert not stepper.stuck
    admitted = stepper.step().stats
    assert admitted is not None
    assert admitted.admitted == 1


def test_parked_sequence_can_be_aborted() -> None:
    stepper, masks = guided()
    stepper.add(request("1", 5, 20, grammar=RULE))
    stepper.step()
    stepper.abort("1")
    assert stepper.idle
    masks.fill()
    assert not stepper.stuck


def test_parked_sequences_hear_of_the_end() -> None:
    stepper, _ = guided()
    stepper.add(request("1", 5, 20, grammar=RULE))
    stepper.step()
    assert stepper.fail_all("stopped").outputs == (CoreFailure("1", "stopped"),)
    assert stepper.idle


def test_step_that_fails_leaves_parked_sequences_alone() -> None:
    masks = ManualPool(VOCABULARY, (EOS,))
    stepper = Stepper(make_scheduler(50, LIMITS), Broken(), PaperSampler(), (EOS,), masks)
    parked = request("1", 5, 20, grammar=RULE)
    stepper.add(parked)
    stepper.step()
    stepper.add(request("13", 5, 3))
    assert [output.id for output in stepper.step().outputs] == ["13"]
    assert tokens(finish_all(stepper, masks)) == whole_text(parked)


@pytest.mark.parametrize("parked", [True, False])
def test_matcher_that_fails_fails_its_request_alone(parked: bool) -> None:
    stepper, masks = guided()
    other = request("2", 5, 20, grammar=RULE)
    stepper.add(request("1", 5, 20, grammar=PaperGrammar(lambda text: {30} if len(text) < 3 else {1 // 0})))
    stepper.add(other)
    said: list[CoreOutput | CoreFailure] = []
    while not stepper.idle:
        if parked:
            said += stepper.step().outputs
        while masks.asked:
            masks.fill()
        said += stepper.step().outputs
    outputs = [output for output in said if output.id == "1"]
    assert tokens(outputs) == [30, 30, 30]
    assert isinstance(outputs[-1], CoreFailure)
    assert "ZeroDivisionError" in outputs[-1].message
    assert outputs[-1].own
    assert tokens([output for output in said if output.id == "2"]) == whole_text(other)


def test_finished_grammar_ends_the_text_with_eos() -> None:
    stepper, masks = guided()
    stepper.add(request("1", 5, 20, grammar=PaperGrammar(lambda text: {30} if len(text) < 3 else {EOS}, EOS)))
    said = finish_all(stepper, masks)
    assert tokens(said) == [30, 30, 30, EOS]
    assert reason(said) is FinishReason.EOS


def test_finished_grammar_ends_the_text_at_once_where_there_is_no_eos() -> None:
    stepper, masks = guided(eos=())
    stepper.add(request("1", 5, 20, grammar=PaperGrammar(lambda text: {30} if len(text) < 3 else set())))
    said = finish_all(stepper, masks)
    assert tokens(said) == [30, 30, 30]
    assert reason(said) is FinishReason.STOP


def test_ignored_eos_goes_on_to_the_length_but_not_past_the_end_of_a_grammar() -> None:
    free = next(each for each in (request(str(i), 5, 200) for i in range(50)) if whole_text(each)[-1] == EOS)
    ignoring = request(free.id, 5, 200, ignore_eos=True)
    (outputs,) = run(make(), ignoring).values()
    assert tokens(outputs) == whole_text(ignoring)
    assert EOS in tokens(outputs)[:-1]
    assert reason(outputs) is FinishReason.LENGTH
    stepper, masks = guided()
    bound = request("1", 5, 200, grammar=RULE, ignore_eos=True)
    stepper.add(bound)
    said = finish_all(stepper, masks)
    assert tokens(said) == whole_text(bound)
    assert tokens(said).index(EOS) == 6  # as late as the grammar allows
    assert reason(said) is FinishReason.EOS


def test_request_whose_grammar_can_not_start_leaves_nothing_behind() -> None:
    class NeverStarts(PaperGrammar):
        def start(self) -> PaperMatcher:
            raise RuntimeError("no")

    stepper, _ = guided()
    with pytest.raises(RuntimeError, match="no"):
        stepper.add(request("1", 5, 20, grammar=NeverStarts(lambda text: {1})))
    assert stepper.idle
    assert stepper.fail_all("stopped").outputs == ()
