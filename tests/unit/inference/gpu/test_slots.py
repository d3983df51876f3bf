from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.gpu import slots as module
from inference.gpu.slots import DeviceState, MirroredTable
from inference.sequences.state import Sequence
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.gpu.small_device import no_room_to_send

CPU = torch.device("cpu")


def sequence(*, seed: int = 0, sampling: Sampling | None = None, raw: bool = True) -> Sequence:
    request = CoreRequest(
        id="a",
        prompt_ids=(1, 2, 3),
        max_new_tokens=5,
        sampling=sampling or Sampling(seed=seed),
        logprobs=LogprobsMode.RAW if raw else LogprobsMode.PROCESSED,
        top_n_tokens=0,
        prompt_logprobs=False,
    )
    return Sequence(request)


def test_nothing_is_sent_when_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MirroredTable(2, 4)
    state = DeviceState(table, CPU)
    table.enter(sequence())
    state.update()
    monkeypatch.setattr(module, "upload", lambda *_: pytest.fail("something was sent"))
    state.update()
    table.append(np.array([1]), np.array([9]))  # the device knows that one itself
    state.update()


def test_request_is_told_to_the_device_as_it_chooses() -> None:
    table = MirroredTable(3, 4)
    state = DeviceState(table, CPU)
    drawn = sequence(sampling=Sampling(sample=True, temperature=0.25, seed=2**64 - 1), raw=False)
    greedy = sequence(sampling=Sampling(temperature=0.5, seed=7))
    for each in (drawn, greedy):
        table.enter(each)
    state.update()
    at = [drawn.slot, greedy.slot]
    assert state.seeds[at].tolist() == [-1, 7]  # 64 bits as they stand
    assert state.temperatures[at].tolist() == [0.25, 0.0]
    assert state.warped[at].tolist() == [True, False]


def test_the_hottest_temperature_has_an_inverse() -> None:
    table = MirroredTable(1, 4)
    state = DeviceState(table, CPU)
    table.enter(sequence(sampling=Sampling(sample=True, temperature=1e300)))
    state.update()
    assert 0 < float(1 / state.temperatures[0]) < 1e-20


def test_newest_tokens_stay_where_there_is_no_memory_to_keep_others() -> None:
    class NoRoom(torch.Tensor):
        def __add__(self, other: object) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    state, slots = DeviceState(MirroredTable(2, 4), CPU), torch.tensor([1, 0])
    state.keep(slots, torch.tensor([3, 5]), torch.tensor([7, 8]))
    with pytest.raises(torch.OutOfMemoryError):
        state.keep(slots, torch.tensor([4, 6]).as_subclass(NoRoom), torch.tensor([9, 9]))
    assert state.tokens[slots].tolist() == [7, 8]
    assert state.lengths[slots].tolist() == [4, 6]
    state.step_back(slots)
    assert state.tokens[slots].tolist() == [0, 0]


def test_what_could_not_be_sent_is_sent_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MirroredTable(2, 4)
    state = DeviceState(table, CPU)
    entered = sequence(seed=9)
    table.enter(entered)
    table.extend(entered, [3, 1])

    with no_room_to_send(monkeypatch, module), pytest.raises(MemoryError):
        state.update()
    state.update()
    assert state.tables[entered.slot].tolist() == [3, 1, 0, 0]
    assert state.seeds[entered.slot] == 9


def test_token_of_the_host_becomes_the_newest() -> None:
    state = DeviceState(MirroredTable(3, 4), CPU)
    state.tell(np.array([2, 0]), np.array([50, 60]), np.array([7, 8]))
    assert state.tokens.tolist() == [60, 0, 50, 0]
    assert state.lengths.tolist() == [8, 0, 7, 0]
    ids = torch.arange(4)
    state.fill_in(ids, torch.tensor([2, 0]))
    assert ids.tolist() == [50, 60, 2, 3]


class Mirror(RuleBasedStateMachine):
    """Sequences come, grow, get other blocks and go: where a sequence has pages, the mirror has them too."""

    @initialize()
    def begin(self) -> None:
        self.table = MirroredTable(3, 6)
        self.state = DeviceState(self.table, CPU)
        self.running: list[Sequence] = []
        self.seeds = 0

    @precondition(lambda self: self.table.free)
    @rule()
    def enter(self) -> None:
        self.seeds += 1
        self.running.append(sequence(seed=self.seeds))
        self.table.enter(self.running[-1])

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2), blocks=st.lists(st.integers(0, 99), max_size=3))
    def extend(self, which: int, blocks: list[int]) -> None:
        each = self.running[which % len(self.running)]
        self.table.extend(each, blocks[: 6 - len(each.blocks)])

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2), at=st.integers(0, 5), block=st.integers(0, 99))
    def replace(self, which: int, at: int, block: int) -> None:
        each = self.running[which % len(self.running)]
        if each.blocks:
            self.table.replace(each, at % len(each.blocks), block)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2))
    def leave(self, which: int) -> None:
        self.table.leave(self.running.pop(which % len(self.running)))

    @rule()
    def update(self) -> None:
        self.state.update()

    @invariant()
    def the_mirror_shows_the_table_once_it_is_written(self) -> None:
        if not self.table.changed:
            for each in self.running:
                pages = self.state.tables[each.slot, : len(each.blocks)]
                assert pages.tolist() == each.blocks
                assert self.state.seeds[each.slot] == each.request.sampling.seed

    def teardown(self) -> None:
        self.state.update()
        self.the_mirror_shows_the_table_once_it_is_written()


TestMirror = Mirror.TestCase
TestMirror.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
