"""Models of 16 bits that are float32 for a while, and afterwards what they were."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from inference.levels.in_float32 import in_float32  # noqa: E402

NARROW = (torch.bfloat16, torch.float16)


class Stack(nn.Module):
    """Two layers that share a weight, between linears that share another; it notes what is of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2))
        self.last.weight, self.layers[1][0].weight = self.first.weight, self.layers[0][0].weight
        self.seen: list[list[bool]] = []
        for layer in self.layers:
            layer[0].register_forward_pre_hook(lambda *_: self.seen.append(self.wide()))

    def forward(self, given: Tensor) -> Tensor:
        given = self.first(given)
        for layer in self.layers:
            given = layer(given)
        self.seen.append(self.wide())
        result: Tensor = self.last(given)
        return result

    def wide(self) -> list[bool]:
        """Return of each layer whether any of it is of float32, but for what never was of 16 bits."""
        return [layer[0].bias.dtype == torch.float32 for layer in self.layers]


@pytest.fixture(params=NARROW, ids=str)
def model(request: pytest.FixtureRequest) -> Stack:
    torch.manual_seed(0)
    model = Stack().to(request.param).eval()
    model.layers[0][1].weight.data = model.layers[0][1].weight.data.float()  # some are never of 16 bits
    return model


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_as_before(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return all(now[name].dtype == old.dtype and torch.equal(now[name], old) for name, old in before.items())


def test_what_is_computed_is_what_float32_gives_and_all_is_as_before(model: Stack) -> None:
    before, given = tensors(model), torch.randn(3, 4)
    with in_float32(model), torch.inference_mode():
        found = model(given)
    assert is_as_before(model, before)
    assert model.last.weight is model.first.weight
    assert model.layers[1][0].weight is model.layers[0][0].weight
    assert torch.equal(found, model.float()(given))


def test_layers_are_of_float32_while_they_compute_alone(model: Stack) -> None:
    with in_float32(model), torch.inference_mode():
        model(torch.randn(3, 4))
    assert model.seen == [[True, False], [False, True], [False, False]]


@pytest.mark.parametrize("after", range(12))
def test_what_fails_on_the_way_leaves_it_as_it_was(
    model: Stack, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, data = tensors(model), {id(each): each.data_ptr() for each in model.parameters()}
    widen, left = Tensor.float, [after]

    def float_(tensor: Tensor) -> Tensor:
        if not left[0]:
            raise RuntimeError("no memory")
        left[0] -= 1
        return widen(tensor)

    monkeypatch.setattr(Tensor, "float", float_)
    with pytest.raises(RuntimeError, match="no memory"), in_float32(model), torch.inference_mode():
        float_(model(torch.randn(3, 4)))
    assert is_as_before(model, before)
    assert {id(each): each.data_ptr() for each in model.parameters()} == data
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model.layers)
