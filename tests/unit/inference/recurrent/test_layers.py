"""What keeps a state is found in the model's own code, by what it writes to transformers' cache."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from transformers import Cache, PreTrainedModel  # noqa: E402

from codegen.toy_rules import OWN  # noqa: E402
from codegen.toys import toy_model  # noqa: E402
from inference.recurrent.layers import find_state_layers  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402


@pytest.mark.parametrize(
    "family", ["lfm2", "qwen3_5_text", "qwen3_next", "granitemoehybrid", "mamba2", "jamba"]
)
def test_every_layer_of_such_a_type_is_found_with_what_it_keeps(family: str) -> None:
    model = toy_model(family)
    found = find_state_layers(model)
    types = model.config.get_text_config().layer_types
    expected = [at for at, each in enumerate(types) if each in ("conv", "linear_attention", "mamba")]
    assert sorted(layer.index for layer in found.values()) == expected
    assert all(layer.nbytes > 0 for layer in found.values())
    assert {layer.recurrent for layer in found.values()} == {family != "lfm2"}


def test_they_are_found_where_no_layer_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers' cache can't say how many tokens it has then."""
    own = {"layer_types": ["linear_attention"] * 2, "num_hidden_layers": 2}
    monkeypatch.setitem(OWN, "granitemoehybrid", own)
    found = find_state_layers(toy_model("granitemoehybrid"))
    assert [layer.index for layer in found.values()] == [0, 1]


def test_states_are_as_big_as_the_cache_of_the_models_own_code_says() -> None:
    model = toy_model("qwen3_5_text")
    with torch.inference_mode():
        cache = model(input_ids=torch.ones(1, 9, dtype=torch.int64), use_cache=True).past_key_values
    for layer in find_state_layers(model).values():
        part = cache.layers[layer.index]
        kept = [value for kind in (part.conv_states, part.recurrent_states) for value in kind.values()]
        assert layer.nbytes == sum(value.nbytes for value in kept)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "bloom"])
def test_models_of_attention_alone_keep_none(family: str) -> None:
    assert find_state_layers(toy(family)) == {}


def test_model_is_left_as_it_was() -> None:
    model = toy_model("lfm2")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    find_state_layers(model)
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert after.keys() == before.keys()
    for name, members in after.items():
        assert members.keys() == before[name].keys()
        assert not members["_forward_pre_hooks"]
        assert not members["_forward_hooks"]


class _Twice(nn.Module):
    """Has a layer's state written by two modules."""

    def __init__(self, own: nn.Module, index: int) -> None:
        super().__init__()
        self.own = own
        self.index = index
        self.writer = _Writer()

    def forward(self, *args: Any, past_key_values: Cache | None = None, **kwargs: Any) -> Tensor:
        self.writer(past_key_values, self.index)
        result: Tensor = self.own(*args, past_key_values=past_key_values, **kwargs)
        return result


class _Writer(nn.Module):
    def forward(self, cache: Cache | None, index: int) -> None:
        if cache is not None:
            cache.update_recurrent_state(torch.zeros(1, 2), index)


def _conv_layer(model: PreTrainedModel) -> tuple[nn.Module, int]:
    layers = model.model.layers
    at = next(at for at, layer in enumerate(layers) if hasattr(layer, "conv"))
    return layers[at], at


def test_layer_whose_state_two_modules_write_is_refused() -> None:
    model = toy_model("lfm2")
    layer, at = _conv_layer(model)
    layer.conv = _Twice(layer.conv, at)
    with pytest.raises(ValueError, match=f"2 modules keep the state of its layer {at}"):
        find_state_layers(model)


def test_module_of_two_layers_is_refused() -> None:
    model = toy_model("lfm2")
    layer, _ = _conv_layer(model)
    again = next(each for each in model.model.layers if hasattr(each, "conv") and each is not layer)
    again.conv = layer.conv
    with pytest.raises(ValueError, match="0 modules keep the state of its layer"):
        find_state_layers(model)
