"""Prompts that are told in full wait while their readers have enough to read; others go on."""

from __future__ import annotations

from inference.sequences.state import Sequence
from tests.unit.inference.engine.test_step import make as make_stepper
from tests.unit.inference.paper_model import request
from tests.unit.inference.scheduling.test_scheduler import make, run


def test_a_prompt_whose_reader_has_enough_isnt_let_in_and_others_go_first() -> None:
    scheduler, full = make(), {"0", "2"}
    scheduler.pace.full = full.__contains__
    told = [Sequence(request(str(at), 4, 9, prompt_logprobs=True)) for at in range(2)]
    plain = Sequence(request("2", 4, 9))
    for each in (*told, plain):
        scheduler.add(each)
    run(scheduler)
    assert list(scheduler.running) == [told[1], plain]
    full.add("1")  # it runs, and goes on
    run(scheduler)
    assert (told[1].generated, plain.generated) == (2, 2)
    assert (list(scheduler.waiting), scheduler.pace.released) == ([told[0]], False)
    full.clear()
    assert scheduler.pace.released
    run(scheduler)
    assert list(scheduler.running) == [told[1], plain, told[0]]


def test_one_reader_who_has_room_is_enough_though_another_has_none() -> None:
    scheduler, full = make(), {"0", "1"}
    scheduler.pace.full = full.__contains__
    for at in range(2):
        scheduler.add(Sequence(request(str(at), 4, 9, prompt_logprobs=True)))
    run(scheduler)
    full.remove("1")
    assert scheduler.pace.released


def test_a_stepper_in_which_all_wait_for_their_readers_is_stuck_until_one_has_room() -> None:
    stepper, full = make_stepper(), {"1"}
    stepper.pace.full = full.__contains__
    stepper.add(request("1", 4, 3, prompt_logprobs=True))
    assert stepper.step().outputs == ()
    before = stepper.stuck
    full.clear()
    assert (before, stepper.stuck) == (True, False)
    assert [output.id for output in stepper.step().outputs] == ["1"]


def test_whoever_is_aborted_is_waited_for_no_more() -> None:
    stepper = make_stepper()
    stepper.pace.full = lambda request_id: True
    stepper.add(request("1", 4, 3, prompt_logprobs=True))
    stepper.step()
    stepper.abort("1")
    assert stepper.idle
    assert stepper.check_idle() == ()
