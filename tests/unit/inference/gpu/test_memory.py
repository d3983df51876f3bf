"""How much is left for the cache, by a meter that says what a test has it say."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from inference.config import EngineConfig
from inference.engine.device_assembly import fitted_plan
from inference.errors import ModelUnavailable
from inference.gpu import memory
from inference.gpu.memory import MIB, Extent, Parts, Room, measure, memory_named
from inference.gpu.runner import GpuRunner
from inference.gpu.sampling import GpuSampler
from inference.gpu.slots import MirroredTable
from inference.grammar.masks import Endings
from inference.kv_cache.blocks import blocks_for
from inference.machine import Machine
from inference.planning.demand import Demand
from inference.planning.plan import make_plan
from inference.sampling.sampler import TorchSampler
from tests.unit.inference.gpu.small_device import VOCABULARY, SmallModel

GIB = 1024 * MIB
EXTENT = Extent(tokens=32, sequences=4, longest=24, logit_rows=6, vocabulary=VOCABULARY)
STATE = 5 * (2 * 4 + 8 * 8 + VOCABULARY * 2)  # bytes of five slots: two pages, eight wishes, and marks
FLAT = 24 * 4 * VOCABULARY  # bytes of what is read of whole rows


@dataclass
class PaperMeter:
    """Says that so much is taken, and that each graph takes some more."""

    total: int = 80 * GIB
    taken: int = 20 * GIB
    peak: int = 3 * GIB
    begun: int = 0

    @property
    def free(self) -> int:
        return self.total - self.taken

    def begin(self) -> None:
        self.begun += 1


def make(models: list[SmallModel], meter: PaperMeter, sizes: tuple[int, ...] = (1, 2, 4)) -> Parts:
    models.append(SmallModel(EXTENT.blocks))
    table = MirroredTable(EXTENT.sequences, blocks_for(EXTENT.longest))
    runner = GpuRunner(models[-1], table, sizes, vocabulary=VOCABULARY)
    capture = runner.graphs.capture_one

    def captured(size: int) -> None:
        capture(size)
        meter.taken += {4: 500, 2: 20}.get(size, 10**9) * MIB

    runner.graphs.capture_one = captured  # type: ignore[method-assign]
    return runner, GpuSampler(TorchSampler(Endings(VOCABULARY, ())), runner.state), table


def test_the_biggest_steps_are_run_and_the_two_biggest_graphs_captured() -> None:
    models: list[SmallModel] = []
    meter = PaperMeter()
    room = measure(lambda blocks: make(models, meter), EXTENT, meter, fraction=0.9)
    prompts, _, scored, *decodes = models[0].batches
    assert len(prompts.ids) == EXTENT.tokens
    assert len(prompts.slots) == EXTENT.sequences
    assert len(scored.ids) == EXTENT.logit_rows
    assert scored.rows is not None
    assert len(scored.rows) == EXTENT.logit_rows
    assert [len(batch.ids) for batch in decodes] == [4, 2]
    assert room.steps == 3 * GIB + FLAT + STATE
    assert room.graphs == 500 * MIB + 2 * 20 * MIB  # the first, and two more like the second
    assert room.share == int(80 * GIB * 0.9)


def test_what_another_process_takes_meanwhile_is_not_taken_for_that_of_each_graph() -> None:
    meter = PaperMeter()

    def make_beside(blocks: int) -> Parts:
        parts = make([], meter)
        capture = parts[0].graphs.capture_one

        def captured(size: int) -> None:
            capture(size)
            meter.taken += (size == 2) * 2 * GIB  # by somebody else

        parts[0].graphs.capture_one = captured  # type: ignore[method-assign]
        return parts

    assert measure(make_beside, EXTENT, meter, fraction=0.9).graphs == 500 * MIB + 2 * 500 * MIB


def test_what_is_left_is_the_share_less_all_else() -> None:
    room = Room(total=80 * GIB, share=72 * GIB, taken=20 * GIB, steps=3 * GIB, graphs=GIB, reserve=2 * GIB)
    assert room.cache == 46 * GIB
    assert "46 GiB" not in str(room)
    assert f"{46 * 1024:,} MiB are left" in str(room)


def test_reserve_is_kept_however_small_the_device() -> None:
    meter = PaperMeter(total=2 * GIB, taken=GIB, peak=0)
    room = measure(lambda blocks: make([], PaperMeter(), ()), EXTENT, meter, fraction=1.0)
    assert room.reserve == memory._RESERVE_LEAST
    assert room.graphs == 0
    assert room.cache == GIB - memory._RESERVE_LEAST - FLAT - STATE


DEMAND = Demand(weights_bytes=16 * GIB, parameters=8 * 10**9, kv_bytes=131_072, max_positions=8192)
MACHINE = Machine(device_type="cuda", free_bytes=79 * GIB)
ROOM = Room(total=80 * GIB, share=80 * GIB, taken=18 * GIB, steps=2 * GIB, graphs=GIB, reserve=2 * GIB)


def test_plan_is_made_anew_with_what_was_measured() -> None:
    config = EngineConfig()
    plan = fitted_plan(config, make_plan(config, DEMAND, MACHINE), ROOM, print)
    assert plan.kv_tokens == ROOM.cache // 131_072 // 16 * 16
    assert plan.max_total_tokens == 8192
    assert f"{plan.kv_tokens:,} tokens" in str(plan)


def test_sequences_get_no_longer_than_the_model_was_prepared_for() -> None:
    demand = replace(DEMAND, max_positions=None)
    config = EngineConfig()
    before = make_plan(config, demand, replace(MACHINE, free_bytes=20 * GIB))
    after = fitted_plan(config, before, ROOM, print)
    assert after.max_total_tokens == before.max_total_tokens
    assert after.kv_tokens > before.kv_tokens


def test_a_cache_larger_than_was_measured_becomes_what_was_and_that_is_told() -> None:
    config, told = EngineConfig(max_batch_total_tokens=10**6), list[str]()
    plan = fitted_plan(config, make_plan(config, DEMAND, MACHINE), ROOM, told.append)
    fits = ROOM.cache // 131_072
    (line,) = told
    assert f"asks for 1,000,000; the GPU has memory for {fits:,}" in line
    assert plan.kv_tokens == fits // 16 * 16
    assert plan == fitted_plan(EngineConfig(), make_plan(EngineConfig(), DEMAND, MACHINE), ROOM, print)


def test_a_smaller_cache_is_what_was_asked_for() -> None:
    config, told = EngineConfig(max_batch_total_tokens=8192), list[str]()
    assert fitted_plan(config, make_plan(config, DEMAND, MACHINE), ROOM, told.append).kv_tokens == 8192
    assert not told


@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(max_batch_total_tokens=10**6)], ids=str)
def test_a_gpu_without_room_for_any_cache_is_refused_with_numbers_and_what_to_do(
    config: EngineConfig,
) -> None:
    plan = make_plan(config, DEMAND, MACHINE)
    with pytest.raises(ModelUnavailable, match="Lower --max-batch-prefill-tokens") as refusal:
        fitted_plan(config, plan, replace(ROOM, taken=79 * GIB), print)
    assert "0 MiB are left" in str(refusal.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
)
def test_memory_that_runs_out_is_said_with_where_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    monkeypatch.setattr(memory, "CudaMeter", lambda device: PaperMeter())
    with (
        pytest.raises(ModelUnavailable, match="ran out while the model was loaded: 61,440 of 81,920 MiB"),
        memory_named("the model was loaded", torch.device("cuda")),
    ):
        raise error


@pytest.mark.parametrize(
    ("device", "error"),
    [("cuda", RuntimeError("shapes don't match")), ("cpu", torch.OutOfMemoryError("no memory"))],
)
def test_other_errors_than_a_gpus_memory_are_left_as_they_are(device: str, error: RuntimeError) -> None:
    with pytest.raises(RuntimeError) as raised, memory_named("it ran", torch.device(device)):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("asked", [None, 10**6])
@pytest.mark.parametrize("steps", [2, 40])
def test_states_and_cache_stay_in_the_room_that_was_measured(asked: int | None, steps: int) -> None:
    """Of which the first plan knew too little: for more steps there are fewer sequences, and never more."""
    demand = replace(DEMAND, state_bytes=150 * 2**20)
    config = EngineConfig(max_batch_total_tokens=asked)
    before, room = make_plan(config, demand, MACHINE), replace(ROOM, steps=steps * GIB)
    plan = fitted_plan(config, before, room, print)
    assert plan.states_bytes + plan.kv_tokens * demand.kv_bytes <= room.cache
    assert 0 < plan.sequences <= before.sequences
    assert (plan.sequences < before.sequences) is (steps == 40)
