"""What is measured of transformers beside the engine, by a paper manager of continuous batching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from transformers import PreTrainedModel

from benchmarks.gpu import baselines
from benchmarks.gpu.baselines import batched_rate
from benchmarks.gpu.clock import Clock, OutOfTime
from benchmarks.gpu.driving import Job

JOBS = [Job((at, 5, 6), 10) for at in range(4)]


class Manager:
    """Takes its time, by a clock of its own: the most to be set up and for what it does first."""

    def __init__(self, lost: int = 0) -> None:
        self._lost = lost
        self._now = 0.0
        self._results: list[Any] = []
        self.prompts: list[list[int]] = []

    @contextmanager
    def continuous_batching_context_manager(self, **_: Any) -> Iterator[Manager]:
        self._now += 3
        yield self

    def add_requests(self, inputs: list[list[int]], max_new_tokens: int) -> None:
        self._now += 0 if self.prompts else 3
        self.prompts += inputs
        result = SimpleNamespace(is_finished=lambda: True, generated_tokens=[0] * max_new_tokens)
        self._results += [result] * (len(inputs) - self._lost)

    def is_running(self) -> bool:
        return bool(self._results)

    def get_result(self, timeout: float) -> Any:
        self._now += 0.1
        return self._results.pop()

    def perf_counter(self) -> float:
        return self._now


def rate(manager: Manager, seconds: float = 60) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "time", manager)
        return batched_rate(cast(PreTrainedModel, manager), JOBS, Clock(seconds))


def test_what_is_set_up_for_transformers_is_not_counted_against_it() -> None:
    manager = Manager()
    assert rate(manager) == pytest.approx(40 / 0.4)
    assert [list(job.prompt) for job in JOBS] == manager.prompts[-4:]
    assert all(prompt not in manager.prompts[-4:] for prompt in manager.prompts[:-4])


def test_requests_that_come_to_nothing_are_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="transformers gave out 30 tokens of 40"):
        rate(Manager(lost=1))


def test_it_is_given_up_when_the_time_for_everything_is_over() -> None:
    with pytest.raises(OutOfTime, match="transformers"):
        rate(Manager(), seconds=0)
