from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch import Tensor  # noqa: E402

from inference.gpu.batch import DeviceBatch  # noqa: E402
from inference.gpu.ops import HeadShape, Ops, torch_ops, triton_ops  # noqa: E402
from inference.gpu.rehearsal import forms, rehearse  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.kernels.reference import Attention  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from tests.unit.inference.gpu.device_models import device_toy, steps  # noqa: E402
from tests.unit.inference.gpu.small_device import SmallModel  # noqa: E402
from tests.unit.inference.gpu.test_stack import batch_of, forward, made  # noqa: E402

HEADS = HeadShape(group=4, kv_heads=8, dim=128, itemsize=2)


class Many(SmallModel):
    """Has the tiles and splits of a real one."""

    def __init__(self, ops: Ops) -> None:
        super().__init__(4)
        self.real = ops

    def tile(self, longest: int) -> int:
        return self.real.tile(HEADS, longest)

    def splits(self, sequences: int, longest: int) -> int:
        return self.real.splits(HEADS, sequences, longest)


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_tile_and_number_of_splits_that_steps_can_have_is_rehearsed(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.gpu.triton_ops._processors", lambda: 132)
    model = Many(triton_ops(deterministic=deterministic))
    rehearse(model, filters=True)
    found = {(each.longest == 1, each.tile, each.splits) for each in model.batches}
    longests = {*range(1, 300), 4096}
    wanted = {
        (longest == 1, model.tile(longest), model.splits(count, longest))
        for longest in longests
        for count in range(1, 513)
    }
    assert wanted <= found
    assert len(model.batches) <= 10


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rehearsal_leaves_the_cache_as_it_is(family: str) -> None:
    model = made(family)
    first, second = (batch_of(model, pieces) for pieces in steps(40)[:2])
    forward(model, first)
    expected = forward(model, second)
    forward(model, first)
    rehearse(model, filters=True)
    assert torch.equal(forward(model, second), expected)


@pytest.mark.parametrize("filters", [True, False])
def test_filters_are_rehearsed_where_the_device_has_them(
    monkeypatch: pytest.MonkeyPatch, *, filters: bool
) -> None:
    shaped: list[object] = []
    monkeypatch.setattr(TorchOps, "shape", lambda *arguments: shaped.append(arguments))
    rehearse(Many(torch_ops()), filters=filters)
    assert bool(shaped) is filters


def test_rehearsed_steps_belong_to_nobody() -> None:
    for each in forms(Many(torch_ops())):
        assert (each.places == -1).all()
        assert (each.lengths == 0).all()


def test_level_whose_biggest_steps_do_not_fit_the_device_is_left_before_a_request_meets_them() -> None:
    class Tight(TorchOps):
        captures = True

        def paged_attention(
            self, query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
        ) -> Tensor:
            if batch.longest > 1000:
                raise RuntimeError("out of resource: shared memory")
            return super().paged_attention(query, keys, values, batch, how)

    options = Options(library=None, ops=Tight(), dtype=torch.float32, max_total_tokens=64)
    served = bring_up(device_toy("llama"), options)
    assert served.level is Level.SEQUENTIAL
    assert "RuntimeError: out of resource" in served.reason
    assert served.verdict.holds
