"""States that aren't in transformers' cache: found by what a layer is made of, and put together again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from codegen.toys import toy_model  # noqa: E402
from inference.recurrent.elsewhere import find_elsewhere, restore_decays  # noqa: E402


@pytest.mark.parametrize(
    ("family", "kind"),
    [("recurrent_gemma", "RecurrentGemmaRecurrentBlock"), ("minimax", "MiniMaxLightningAttention")],
)
def test_every_layer_of_such_a_type_is_found(family: str, kind: str) -> None:
    model = toy_model(family)
    found = find_elsewhere(model)
    assert found
    assert [*found] == [module for module in model.modules() if type(module).__name__ == kind]


@pytest.mark.parametrize("family", ["llama", "lfm2", "mamba2", "minimax_m2"])
def test_others_have_none(family: str) -> None:
    assert find_elsewhere(toy_model(family)) == {}


@pytest.mark.parametrize("family", ["recurrent_gemma", "minimax"])
def test_a_layer_goes_on_from_what_it_kept(family: str) -> None:
    model = toy_model(family)
    module, layer = next(iter(find_elsewhere(model).items()))
    hidden = torch.randn(2, 11, model.config.hidden_size)
    positions = torch.arange(11).expand(2, -1)
    name = "input_states" if family == "recurrent_gemma" else "hidden_states"
    others = {"use_cache": False} if family == "recurrent_gemma" else {"position_embeddings": None}
    with torch.inference_mode():
        own, _ = module(**{name: hidden, "position_ids": positions, "attention_mask": None, **others})
        kept, found = None, []
        for part, places in zip(hidden.split([4, 1, 6], 1), positions.split([4, 1, 6], 1), strict=True):
            given = {name: part, "position_ids": places, "attention_mask": None, **others}
            (result, _), kept = layer.run(module.forward, given, kept)
            found.append(result)
    assert torch.allclose(torch.cat(found, dim=1), own, rtol=1e-4, atol=1e-5)
    assert kept is not None
    assert {state: tuple(value.shape) for state, value in kept.items()} == {
        state: (2, *state.shape) for state in layer.states
    }


def test_decays_that_a_file_holds_rounded_are_computed_anew() -> None:
    model = toy_model("minimax")
    exact = {
        name: value.clone() for name, value in model.named_buffers() if "decay" in name or "slope" in name
    }
    for name in exact:
        buffer = model.get_buffer(name)
        buffer.copy_(buffer.bfloat16())
    assert any(not torch.equal(model.get_buffer(name), value) for name, value in exact.items())
    restore_decays(model)
    assert all(torch.equal(model.get_buffer(name), value) for name, value in exact.items())
    restore_decays(toy_model("llama"))  # which has none
