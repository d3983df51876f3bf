"""Steps for which there is no memory: they get smaller, and no text is lost or changed by it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from inference.engine.step import Stepper
from inference.scheduling.easing import EASED_STEPS
from inference.scheduling.scheduler import Limits
from inference.sequences.sight import ImageRows, Sight
from inference.sequences.state import Pieces
from inference.shortage import is_shortage
from inference.types import CoreFailure, CoreOutput, CoreRequest
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

LIMITS = Limits(tokens=256, sequences=8, logit_rows=64)


class OutOfMemoryError(RuntimeError):
    """Called as torch's is."""


class Short(PaperRunner):
    """Has no memory for steps of more than so many tokens."""

    def __init__(self, most: int, error: Exception) -> None:
        super().__init__()
        self.most = most
        self.refused = 0
        self.largest = 0  # step that was computed
        self._error = error

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> list[int]:
        size = int((pieces.stops - pieces.starts).sum())
        if size > self.most:
            self.refused += 1
            raise self._error
        self.largest = max(self.largest, size)
        return super().run(pieces, tokens_only=tokens_only)


def make(runner: Short, limits: Limits = LIMITS, blocks: int = 60) -> Stepper[list[int]]:
    scheduler = make_scheduler(blocks, limits)
    return Stepper(scheduler, runner, PaperSampler(), (EOS,), ManualPool(VOCABULARY, (EOS,)))


def run(stepper: Stepper[list[int]], *requests: CoreRequest) -> dict[str, list[CoreOutput | CoreFailure]]:
    said: dict[str, list[CoreOutput | CoreFailure]] = defaultdict(list)
    for each in requests:
        stepper.add(each)
    while not stepper.idle:
        for output in stepper.step().outputs:
            said[output.id].append(output)
    assert stepper.check_idle() == ()
    return said


def tokens(outputs: list[CoreOutput | CoreFailure]) -> list[int]:
    return [output.token_id for output in outputs if isinstance(output, CoreOutput)]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("No memory for a step of 200 tokens"),
        OutOfMemoryError("Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
)
@pytest.mark.parametrize("prefix", [0, 64])
def test_steps_get_smaller_and_every_text_is_what_it_would_have_been(error: Exception, prefix: int) -> None:
    short = Short(40, error)
    wanted = [request(str(index), 70 + 11 * index, 20, prefix=prefix) for index in range(12)]
    said = run(make(short), *wanted)
    assert [tokens(said[each.id]) for each in wanted] == [whole_text(each) for each in wanted]
    assert 0 < short.refused < 30


@pytest.mark.parametrize("chunked", [True, False])
def test_what_fits_into_no_step_fails_alone(chunked: bool) -> None:
    limits = Limits(tokens=256, sequences=8, logit_rows=64, chunked=chunked)
    short = Short(0, MemoryError("none"))
    stepper = make(short, limits)
    for output in run(stepper, *(request(str(index), 100, 20) for index in range(3))).values():
        (failure,) = output
        assert isinstance(failure, CoreFailure)
        assert "MemoryError" in failure.message
    short.most = 1000
    after = request("7", 100, 5)
    assert tokens(run(stepper, after)["7"]) == whole_text(after)


@pytest.mark.parametrize("several", [1, 3])
def test_prompts_that_are_not_cut_and_fit_into_no_step_fail_soon_beside_others(several: int) -> None:
    """Each came back whenever steps grew again, and had everybody wait for it."""
    short = Short(1000, MemoryError("none"))
    stepper = make(short, Limits(tokens=256, sequences=8, logit_rows=64, chunked=False), blocks=400)
    beside = [request(str(index), 20, 3 * EASED_STEPS, ignore_eos=True) for index in range(2)]
    for each in beside:
        stepper.add(each)
    for _ in range(5):
        stepper.step()
    huge = [request(str(50 + index), 1200, 5) for index in range(several)]
    said = run(stepper, *huge, request("99", 30, 5))
    assert all(isinstance(said[each.id][-1], CoreFailure) for each in huge)
    for each in (*beside, request("99", 30, 5)):
        assert whole_text(each)[-len(tokens(said[each.id])) :] == tokens(said[each.id])
    assert short.refused == 2 * several


def test_prompt_that_is_not_cut_and_fits_alone_is_answered_beside_others() -> None:
    limits = Limits(tokens=256, sequences=8, logit_rows=64, chunked=False)
    short = Short(200, MemoryError("none"))
    wanted = [request("0", 20, 40), request("1", 20, 40), request("9", 200, 40), request("2", 20, 40)]
    stepper = make(short, limits, blocks=400)
    said = run(stepper, *wanted)
    assert [tokens(said[each.id]) for each in wanted] == [whole_text(each) for each in wanted]
    assert short.refused == 1


def test_image_that_is_not_cut_and_fits_into_no_step_fails_alone() -> None:
    short = Short(60, MemoryError("none"))
    stepper = make(short)
    sight = Sight(
        [b"k"], [ImageRows(torch.zeros(100, 4), torch.zeros(100, 4), {})], np.arange(10, 110), two_way=True
    )
    stepper.add(request("9", 150, 5), sight)
    said = run(stepper, *(request(str(index), 50, 20) for index in range(3)))
    assert all(tokens(said[str(index)]) == whole_text(request(str(index), 50, 20)) for index in range(3))
    assert isinstance(said["9"][-1], CoreFailure)
    assert short.refused < 30


def test_steps_grow_again_once_there_is_memory() -> None:
    short = Short(40, MemoryError("none"))
    stepper = make(short, blocks=80)
    run(stepper, *(request(str(index), 100, 5) for index in range(8)))
    assert short.largest <= 40
    short.most = 1000
    run(stepper, request("9", 3, 4 * EASED_STEPS, ignore_eos=True))
    run(stepper, *(request(str(20 + index), 100, 5) for index in range(8)))
    assert short.largest > 200


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), ValueError("out of memory"), OSError(13, "x")]
)
def test_other_errors_are_none_of_memory(error: Exception) -> None:
    assert not is_shortage(error)
