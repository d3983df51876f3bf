"""Adapters that fit their model, and those that don't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from inference.errors import ModelUnavailable
from inference.files.adapters import read_files
from inference.models.lora import load_adapters
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
def test_weights_are_kept_as_they_are_or_widened(
    model: PreTrainedModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    adapter = toy_adapter(model, ("q_proj",), rank=4, alpha=6.0)
    adapter.save(tmp_path, dtype)
    (found,) = load_adapters([read_files("a", tmp_path)], model).low_ranks
    down, up = (side.to(dtype) for side in adapter.sides[QUERY])
    kept = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
    assert (found[QUERY].down.dtype, found[QUERY].up.dtype, found[QUERY].scale) == (kept, kept, 1.5)
    assert torch.equal(found[QUERY].down, down.to(kept))
    assert torch.equal(found[QUERY].up, up.to(kept))
    assert found.keys() == adapter.sides.keys()


def test_linears_of_no_layer_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    sides = toy_adapter(model, ("q_proj",)).sides[QUERY]
    for path in ("lm_head", "model.embed_tokens", "model.layers.9.self_attn.q_proj", "model.layers.0.mlp"):
        with pytest.raises(
            ModelUnavailable, match=f"it adds to `{path}`, which are no linears of LlamaForCaus"
        ):
            load(ToyAdapter({path: sides}, 8.0), model, tmp_path)


@pytest.mark.parametrize(
    "seeing", ["vision_tower.vision_model.encoder.layers.0.q_proj", "visual.blocks.0.attn.qkv"]
)
def test_parts_that_see_are_passed_over_whatever_they_are_called(
    seeing: str, model: PreTrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sides = toy_adapter(model, ("q_proj",)).sides[QUERY]
    beside = {QUERY: sides, seeing: (sides[0].clone(), sides[1].clone())}
    assert load(ToyAdapter(beside, 8.0), model, tmp_path / "both").keys() == {QUERY}
    assert "adds to 1 linears by which the model sees: not to these" in caplog.text
    with pytest.raises(ModelUnavailable, match="text doesn't come through any of the linears"):
        load(ToyAdapter({seeing: sides}, 8.0), model, tmp_path / "alone")


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


@pytest.mark.parametrize(
    ("family", "path", "called"),
    [
        ("qwen2_5_vl", "model.language_model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"),
        (
            "qwen2_5_vl",
            "model.language_model.layers.0.self_attn.q_proj",
            "language_model.model.layers.0.self_attn.q_proj",
        ),
        ("llama", QUERY, "model.language_model.layers.0.self_attn.q_proj"),
        ("llama4_text", QUERY, "language_model.model.layers.0.self_attn.q_proj"),
    ],
)
def test_names_of_another_make_of_the_model_are_understood(
    family: str, path: str, called: str, tmp_path: Path
) -> None:
    model = make_model(family)
    sides = toy_adapter(model, (path,)).sides[path]
    assert load(ToyAdapter({called: sides}, 8.0), model, tmp_path).keys() == {path}
    twice = {path: (sides[0].clone(), sides[1].clone()), called: sides}
    with pytest.raises(ModelUnavailable, match=f"it has `{path}` by two names"):
        load(ToyAdapter(twice, 8.0), model, tmp_path)


def test_names_of_a_model_of_text_are_understood_by_one_that_holds_it(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    class Seeing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language_model = model
            self.get_output_embeddings = model.get_output_embeddings

    sides = toy_adapter(model, ("q_proj",)).sides[QUERY]
    ToyAdapter({QUERY: sides}, 8.0).save(tmp_path)
    (found,) = load_adapters([read_files("a", tmp_path)], Seeing()).low_ranks
    assert found.keys() == {f"language_model.{QUERY}"}


def test_a_file_that_only_its_header_is_whole_of_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    adapter = toy_adapter(model, ("q_proj",))
    adapter.save(tmp_path)
    files = read_files("a", tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    size = int.from_bytes(file.read_bytes()[:8], "little")
    table = json.loads(file.read_bytes()[8 : 8 + size]) | {"__metadata__": {"a": 1}}
    header = json.dumps(table).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + file.read_bytes()[8 + size :])
    with pytest.raises(
        ModelUnavailable, match=r"`adapter_model.safetensors` is damaged \(.*\): get it again"
    ):
        load_adapters([files], model)
    toy_adapter(model, ("k_proj",)).save(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"was changed while the model was loaded"):
        load_adapters([files], model)


def test_numbers_are_released_and_names_are_kept(model: PreTrainedModel, tmp_path: Path) -> None:
    toy_adapter(model, ("q_proj",)).save(tmp_path)
    adapters = load_adapters([read_files("a", tmp_path)], model)
    adapters.release()
    assert adapters.paths == []
    assert adapters.names == ("a",)
