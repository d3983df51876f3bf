from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.config import EngineConfig
from inference.engine.ahead import AheadStepper
from inference.engine.device_assembly import Assembly
from inference.errors import ModelUnavailable
from inference.gpu.ops import choose_ops
from inference.gpu.torch_ops import TorchOps
from inference.grammar.masks import MaskPool
from inference.machine import Machine
from inference.planning.demand import Demand
from inference.planning.plan import Plan, make_plan
from inference.scheduling.scheduler import Limits
from tests.unit.inference.gpu.small_device import VOCABULARY, SmallModel

GPU = torch.device("cuda")
PLAN = make_plan(
    EngineConfig(max_total_tokens=64, max_batch_size=6),
    Demand(weights_bytes=0, parameters=1, kv_bytes=512, max_positions=64),
    Machine(device_type="cpu", free_bytes=2**22),
)


def assembled(**settings: Any) -> tuple[Assembly, list[SmallModel]]:
    models: list[SmallModel] = []

    def make_model(blocks: int) -> SmallModel:
        models.append(SmallModel(blocks))
        return models[-1]

    return (
        Assembly(
            config=EngineConfig(**settings),
            make_model=make_model,
            vocabulary=VOCABULARY,
            limits=Limits(tokens=64, sequences=6, logit_rows=4),
            eos=(),
        ),
        models,
    )


def test_kernels_that_are_switched_off_give_way_to_torch() -> None:
    assert isinstance(choose_ops(EngineConfig(native_kernels=False), GPU), TorchOps)
    assert isinstance(choose_ops(EngineConfig(), torch.device("cpu")), TorchOps)


def test_deterministic_mode_without_our_kernels_is_refused() -> None:
    with pytest.raises(ModelUnavailable, match=r"--deterministic needs .* leave --native-kernels true"):
        choose_ops(EngineConfig(native_kernels=False, deterministic=True), GPU)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ModuleNotFoundError("No module named 'triton'"), "pip install triton"),
        (ImportError("it can't compile: RuntimeError: Failed to find C compiler"), "set CC to one"),
    ],
)
def test_triton_that_cannot_be_used_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, advice: str
) -> None:
    def unusable(**_: object) -> None:
        raise error

    monkeypatch.setattr("inference.gpu.ops.triton_ops", unusable)
    with pytest.raises(ModelUnavailable, match=rf"{advice}.* or start with --native-kernels false"):
        choose_ops(EngineConfig(), GPU)


@pytest.mark.parametrize(
    ("settings", "sizes"), [({}, (1, 2, 4, 6)), ({"cuda_graphs": (0,)}, ()), ({"cuda_graphs": (2, 9)}, (2,))]
)
def test_graphs_are_captured_for_the_sizes_that_are_set(
    settings: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    made, models = assembled(**settings)
    made.make_stepper(PLAN, MaskPool(VOCABULARY, ()), lambda line: None)
    assert tuple(sorted(len(batch.ids) for batch in models[0].batches)) == sizes
    assert models[0].tuned == (sizes or (1,))


def test_stepping_ahead_and_tuning_can_be_switched_off() -> None:
    made, models = assembled(one_step_ahead=False, tune_linears=False)
    stepper = made.make_stepper(PLAN, MaskPool(VOCABULARY, ()), lambda line: None)
    assert not isinstance(stepper, AheadStepper)
    assert models[0].tuned == ()
    made, _ = assembled()
    assert isinstance(made.make_stepper(PLAN, MaskPool(VOCABULARY, ()), lambda line: None), AheadStepper)


def test_plan_stays_as_it_is_where_no_memory_is_measured() -> None:
    made, models = assembled()
    plan: Plan = made.fit(PLAN, torch.device("cpu"), lambda line: None)
    assert plan is PLAN
    assert models == []
