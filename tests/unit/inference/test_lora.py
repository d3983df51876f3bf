"""Adapters that fit their model, and those that don't."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from inference.adapters import read_files
from inference.errors import ModelUnavailable
from inference.lora import load_adapters
from tests.engine.adapters import ToyAdapter, toy_adapter
from tests.engine.models import make_model

QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_model("llama")


def load(adapter: ToyAdapter, model: PreTrainedModel, directory: Path) -> dict[str, object]:
    adapter.save(directory)
    (found,) = load_adapters([read_files("a", directory)], model).low_ranks
    return dict(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_widened_and_scaled(model: PreTrainedModel, tmp_path: Path, dtype: torch.dtype) -> None:
    adapter = toy_adapter(model, ("q_proj",), rank=4, alpha=6.0)
    adapter.save(tmp_path, dtype)
    (found,) = load_adapters([read_files("a", tmp_path)], model).low_ranks
    down, up = (side.to(dtype).float() for side in adapter.sides[QUERY])
    assert torch.equal(found[QUERY].down, down)
    assert torch.equal(found[QUERY].up, up * 1.5)
    assert found.keys() == adapter.sides.keys()


def test_linears_of_no_layer_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    sides = toy_adapter(model, ("q_proj",)).sides[QUERY]
    for path in ("lm_head", "model.embed_tokens", "model.layers.9.self_attn.q_proj", "model.layers.0.mlp"):
        with pytest.raises(
            ModelUnavailable, match=f"it adds to `{path}`, which are no linears of LlamaForCaus"
        ):
            load(ToyAdapter({path: sides}, 8.0), model, tmp_path)


def test_many_of_them_are_counted(model: PreTrainedModel, tmp_path: Path) -> None:
    sides = toy_adapter(model, ("q_proj",)).sides[QUERY]
    strange = {f"transformer.h.{at}.attn": (sides[0].clone(), sides[1].clone()) for at in range(5)}
    with pytest.raises(ModelUnavailable, match=r"`transformer.h.2.attn` and 2 more, which are no linears"):
        load(ToyAdapter(strange, 8.0), model, tmp_path)


def test_sizes_of_another_model_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    down, up = toy_adapter(model, ("q_proj",)).sides[QUERY]
    for wrong in ((down[:, 1:], up), (down, up[1:])):
        with pytest.raises(ModelUnavailable, match=r"numbers to `.*q_proj`, which has .*: it is for another"):
            load(ToyAdapter({QUERY: tuple(each.contiguous() for each in wrong)}, 8.0), model, tmp_path)


def test_a_damaged_one_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    down, up = toy_adapter(model, ("q_proj",)).sides[QUERY]
    with pytest.raises(ModelUnavailable, match=r"its weights of `.*q_proj` are NaN or infinite"):
        load(ToyAdapter({QUERY: (down, up * float("nan"))}, 8.0), model, tmp_path)


def test_one_made_of_the_text_model_alone_fits_the_model_that_sees(tmp_path: Path) -> None:
    seeing = make_model("qwen2_5_vl")
    paths = [
        path for path, each in seeing.named_modules() if isinstance(each, nn.Linear) and "q_proj" in path
    ]
    path = next(each for each in paths if "language_model" in each)
    sides = toy_adapter(seeing, (path,)).sides[path]
    other = path.replace("model.language_model.", "model.")
    assert load(ToyAdapter({other: sides}, 8.0), seeing, tmp_path).keys() == {path}
