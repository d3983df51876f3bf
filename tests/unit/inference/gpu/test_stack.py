from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from inference.gpu.batch import DeviceBatch  # noqa: E402
from inference.gpu.linears import Multiplier  # noqa: E402
from inference.gpu.model import DeviceModel  # noqa: E402
from inference.gpu.packing import pack_batch  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.kernels.reference import Attention  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.sequences.state import Pieces  # noqa: E402
from tests.unit.inference.gpu.device_models import BLOCKS, DEVICE, device_ops, device_toy, steps  # noqa: E402


class Blind(TorchOps):
    """Attention that looks at no length, as a GPU's kernel; what it computes is no matter here."""

    blind = False

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
    ) -> Tensor:
        if self.blind:
            return query.new_zeros(*query.shape[:2], values.shape[3])
        return super().paged_attention(query, keys, values, batch, how)


def made(family: str, ops: TorchOps | None = None, **changes: int) -> DeviceModel:
    options = Options(library=None, ops=ops or device_ops(), max_total_tokens=256)
    served = bring_up(device_toy(family, **changes), options)
    assert served.make_model is not None
    return served.make_model(BLOCKS)


def batch_of(model: DeviceModel, pieces: Pieces) -> DeviceBatch:
    tables = torch.from_numpy(pieces.table.blocks).to(DEVICE)
    longest = int((pieces.stops - pieces.starts).max())
    return pack_batch(pieces, tables, tile=model.tile(longest), splits=model.splits(2, longest))


@torch.inference_mode()
def forward(model: DeviceModel, batch: DeviceBatch) -> Tensor:
    return model.forward(batch).float()


@contextmanager
def blind_to_values(ops: Blind) -> Iterator[None]:
    """Fail whatever asks a tensor for what it holds, or makes a shape of that: a graph can't have it."""
    ops.blind = True
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield
    ops.blind = False


FAMILIES = ["llama", "gemma2", "olmo2", "glm4", "granite", "cohere", "gpt2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_decodes_asks_no_tensor_for_what_it_holds(family: str) -> None:
    ops = Blind()
    model = made(family, ops)
    batch = batch_of(model, steps(1)[0])
    assert batch.longest == 1
    with blind_to_values(ops):
        assert model.forward(batch).shape == (2, 97)


def test_a_step_that_does_is_found() -> None:
    ops = Blind()
    model = made("llama", ops)
    batch = batch_of(model, steps(1)[0])
    with pytest.raises(Exception, match=r"item|_local_scalar_dense"), blind_to_values(ops):
        TorchOps().paged_attention(torch.zeros(2, 4, 16), *(torch.zeros(11, 16, 2, 16),) * 2, batch,
                                   Attention(scaling=1.0))  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "olmo2", "mixtral"])
def test_forward_is_a_function_of_the_batch_and_the_cache(family: str) -> None:
    model = made(family)
    first, second = (batch_of(model, pieces) for pieces in steps(40)[:2])
    once = forward(model, first)
    assert torch.equal(forward(model, first), once)
    forward(model, second)
    assert torch.equal(forward(model, first), once)  # what is behind a token says nothing of it
    copied = replace(first, **{name: getattr(first, name).clone() for name in ("ids", "places", "tables")})
    assert torch.equal(forward(model, copied), once)


@pytest.mark.parametrize("family", ["llama", "granite", "cohere", "gpt2"])
def test_only_the_rows_asked_for_get_logits(family: str) -> None:
    model = made(family)
    batch = batch_of(model, steps(30)[0])
    every = forward(model, replace(batch, rows=None))
    assert every.shape == (len(batch.ids), 97)
    rows = torch.tensor([0, 7, len(batch.ids) - 1], device=DEVICE)
    found = forward(model, replace(batch, rows=rows))
    assert torch.allclose(found, every[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "olmo2", "granite"])
@pytest.mark.parametrize("rows", [[], [3], [0, 7, 59]], ids=["none", "one", "some"])
def test_a_trimmed_last_layer_leaves_logits_and_cache_as_they_were(family: str, rows: list[int]) -> None:
    served = [
        bring_up(
            device_toy(family), Options(library=None, ops=device_ops(), max_total_tokens=256, trim=trim)
        ).make_model
        for trim in (False, True)
    ]
    whole, trimmed = (each(BLOCKS) for each in served if each is not None)
    first, second = (batch_of(whole, pieces) for pieces in steps(30)[:2])
    assert len(first.ids) == 60
    wanted = replace(first, rows=torch.tensor(rows, dtype=torch.int64, device=DEVICE))
    every, found = forward(whole, replace(first, rows=None)), forward(trimmed, wanted)
    assert found.shape == (len(rows), 97)
    assert torch.allclose(found, every[rows], rtol=1e-4, atol=1e-5)
    assert torch.allclose(forward(trimmed, second), forward(whole, second), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("trim", "rows"), [(True, 2), (False, 60)])
def test_only_a_trimmed_last_layer_multiplies_few_rows(
    monkeypatch: pytest.MonkeyPatch, trim: bool, rows: int
) -> None:
    seen: list[int] = []
    options = Options(library=None, ops=device_ops(), max_total_tokens=256, trim=trim)
    make_model = bring_up(device_toy("llama"), options).make_model
    assert make_model is not None
    model, multiply = make_model(BLOCKS), Multiplier.__call__

    def watched(self: Multiplier, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(len(x))
        return multiply(self, x, weight, bias)

    monkeypatch.setattr(Multiplier, "__call__", watched)
    batch = batch_of(model, steps(30)[0])
    forward(model, replace(batch, rows=torch.tensor([3, 59], device=DEVICE)))
    assert seen[-5:] == [60, rows, rows, rows, 2]  # q k v, out, gate and up, down, and the head
    assert set(seen[:-5]) == {60}


def test_models_of_two_caches_know_nothing_of_each_other() -> None:
    served = bring_up(device_toy("llama"), Options(library=None, ops=device_ops(), max_total_tokens=256))
    assert served.make_model is not None
    one, other = served.make_model(BLOCKS), served.make_model(BLOCKS)
    first, second = (batch_of(one, pieces) for pieces in steps(40)[:2])
    forward(one, first)
    expected = forward(one, second)
    forward(other, replace(first, ids=first.ids.flip(0)))
    assert torch.equal(forward(one, second), expected)


def test_tiles_are_cut_for_the_models_heads() -> None:
    class Asked(TorchOps):
        def tile(self, heads: object, longest: int) -> int:
            asked.append(heads)
            return longest

    asked: list[object] = []
    model = made("gemma2", Asked())
    model.tile(1)
    (heads,) = {asked[-1]}
    assert "HeadShape(group=2, kv_heads=2, dim=16, itemsize=4, latent=False)" == repr(heads)
