"""Models of 16 bits that are float32 for a while, and afterwards what they were."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.widened import in_float32  # noqa: E402


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_numbers_are_the_same_before_meanwhile_and_afterwards(name: str) -> None:
    dtype = getattr(torch, name)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)).to(dtype)
    model[1].weight.data = model[1].weight.data.float()  # some are never of 16 bits
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with in_float32(model):
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.double(), before[name].double())
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_weights_that_are_tied_stay_so() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(torch.bfloat16)
    model[1].weight = model[0].weight
    with in_float32(model):
        assert model[1].weight is model[0].weight
    assert model[1].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_fails_on_the_way_or_within_leaves_it_as_it_was(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(4, 4).to(torch.bfloat16)
    own, widen, left = model.weight.data_ptr(), Tensor.float, [after]

    def float_(tensor: Tensor) -> Tensor:
        if not left[0]:
            raise RuntimeError("no memory")
        left[0] -= 1
        return widen(tensor)

    monkeypatch.setattr(Tensor, "float", float_)
    with pytest.raises(RuntimeError, match="no memory"), in_float32(model):
        float_(model.weight)
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert model.weight.data_ptr() == own
