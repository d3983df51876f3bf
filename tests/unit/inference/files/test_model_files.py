"""Which files a model is loaded from, and what is said of directories that hold something else."""

from __future__ import annotations

import json
import logging
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import find_checkpoint, read_weights
from inference.files.model_files import pickled_files, safetensors_files
from inference.text.files import find_files

ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def weights(file: Path, numbers: int = 2) -> None:
    """Write a safetensors file with one tensor."""
    header = {file.stem: {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4 * numbers))


def index(file: Path, *names: str) -> None:
    write(file, {"weight_map": {str(at): name for at, name in enumerate(names)}})


def find(path: Path, *, trust_remote_code: bool = False) -> Path:
    return find_checkpoint(
        ModelConfig(model_id=str(path), trust_remote_code=trust_remote_code), lambda _: None
    ).path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    write(directory / "config.json", {"model_type": "llama"})
    weights(directory / "model.safetensors")
    return directory


def test_only_what_is_loaded_is_counted(model: Path) -> None:
    for name in ("consolidated", "adapter_model", "model.fp16"):
        weights(model / f"{name}.safetensors", 100)
    (model / "broken.safetensors").write_bytes(b"nobody reads it")
    assert find(model) == model
    assert read_weights(model).floats == 2


def test_an_index_says_what_is_loaded_where_there_is_no_single_file(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    weights(model / "model-2.safetensors", 3)
    weights(model / "consolidated.safetensors", 100)
    index(model / "model.safetensors.index.json", "model-2.safetensors", "model-1.safetensors")
    assert [file.name for file in safetensors_files(find(model))] == [
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    assert read_weights(model).floats == 5


def test_files_of_an_index_that_are_not_there_are_named(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    index(model / "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors")
    with pytest.raises(
        ModelUnavailable, match=r"names 2 files, and 1 of them .*: model-2\.safetensors: down"
    ):
        find(model)
    weights(model / "model.safetensors")  # is loaded, and the index isn't
    assert find(model) == model


@pytest.mark.parametrize(
    "broken", ["version https://git-lfs.github.com/spec/v1", "{}", '{"weight_map": {"w": "other.pt"}}']
)
def test_an_index_of_pickles_beside_safetensors_may_be_broken(broken: str, model: Path) -> None:
    name = "pytorch_model.bin.index.json"
    (model / name).write_text(broken)
    assert find(model) == model
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=name):
        find(model, trust_remote_code=True)


def test_an_index_that_the_configuration_names_is_checked(model: Path) -> None:
    index(model / "all.safetensors.index.json", "model.safetensors", "other.safetensors")
    write(model / "config.json", {"transformers_weights": "all.safetensors.index.json"})
    with pytest.raises(ModelUnavailable, match=r"1 of them .*: other\.safetensors: download"):
        find(model)


def test_weights_in_parts_without_their_index_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    with pytest.raises(ModelUnavailable, match=r"none of its files is `model\.safetensors`.*model-1"):
        find(model)


def test_a_configuration_can_name_the_file(model: Path) -> None:
    weights(model / "other.safetensors", 7)
    write(model / "config.json", {"model_type": "llama", "transformers_weights": "other.safetensors"})
    assert read_weights(find(model)).floats == 7
    index(model / "all.safetensors.index.json", "model.safetensors", "other.safetensors")
    write(model / "config.json", {"transformers_weights": "all.safetensors.index.json"})
    assert read_weights(find(model)).floats == 9
    for name in ("../other.safetensors", "nowhere.safetensors", 5):
        write(model / "config.json", {"transformers_weights": name})
        with pytest.raises(ModelUnavailable, match="says that `transformers_weights` is"):
            find(model)


def test_pickles_are_found_as_transformers_finds_them(model: Path) -> None:
    (model / "model.safetensors").unlink()
    index(model / "pytorch_model.bin.index.json", "pytorch_model-1.bin", "pytorch_model-2.bin")
    (model / "pytorch_model-1.bin").touch()
    with pytest.raises(ModelUnavailable, match=r"pytorch_model-2\.bin: download"):
        find(model, trust_remote_code=True)
    (model / "pytorch_model-2.bin").touch()
    assert len(pickled_files(find(model, trust_remote_code=True))) == 2
    (model / "pytorch_model.bin").touch()
    assert pickled_files(model) == [model / "pytorch_model.bin"]


def test_pickles_are_counted_where_they_are_loaded(model: Path) -> None:
    weights(model / "consolidated.safetensors", 100)
    (model / "model.safetensors").unlink()
    torch.save({"w": torch.zeros(3, 4)}, model / "pytorch_model.bin")
    assert read_weights(find(model, trust_remote_code=True), pickled=True).floats == 12


@pytest.mark.parametrize("configured", [True, False])
def test_an_adapter_without_its_model_is_refused(configured: bool, model: Path) -> None:
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    if not configured:
        (model / "config.json").unlink()
    write(model / "adapter_config.json", ADAPTER)
    with pytest.raises(ModelUnavailable, match="holds a LoRA adapter of `org/base`: serve its model"):
        find(model)


def test_an_adapter_beside_its_model_is_not_passed_over_in_silence(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(model / "adapter_config.json", ADAPTER)
    with caplog.at_level(logging.WARNING):
        assert find(model) == model
    assert "holds a LoRA adapter beside the model: it isn't applied" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [("model.gguf", "is GGUF, which isn't served"), ("model.safetensors", "is a file: give the directory")],
)
def test_a_file_is_no_model(name: str, message: str, model: Path) -> None:
    (model / name).touch()
    with pytest.raises(ModelUnavailable, match=message):
        find(model / name)
    with pytest.raises(ModelUnavailable, match=message):
        find_files(ModelConfig(model_id=str(model / name)))


@pytest.mark.parametrize("name", ["./gpt2", "./gpt2.bin", "gpt2.bin"])
def test_a_file_that_is_called_as_a_model_of_the_hub_is_in_nobodys_way(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (model / name).touch()
    with pytest.raises(ModelUnavailable, match="is a file: give the directory"):
        find_checkpoint(ModelConfig(model_id=name), lambda _: None)
    (model / "gpt2").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(model))
    monkeypatch.setattr("huggingface_hub.model_info", lambda *_, **__: SimpleNamespace(pipeline_tag=None))
    assert find_checkpoint(ModelConfig(model_id="gpt2"), lambda _: None).path == model
    assert find_files(ModelConfig(model_id="gpt2")).directory == model


@pytest.mark.parametrize(
    "described",
    [{"medusa_num_heads": 3}, {"model_type": "mlp_speculator"}, {"model_type": "medusa"}],
    ids=str,
)
@pytest.mark.parametrize("base", [None, "org/base"])
def test_heads_that_speculate_are_no_model(
    described: dict[str, Any], base: str | None, tmp_path: Path
) -> None:
    write(tmp_path / "config.json", described | ({} if base is None else {"base_model_name_or_path": base}))
    weights(tmp_path / "medusa_lm_head.safetensors")
    wanted = "of `org/base`: serve that model" if base else "of another model: serve that"
    with pytest.raises(ModelUnavailable, match=f"heads that guess the tokens {wanted}"):
        find_checkpoint(ModelConfig(model_id=str(tmp_path)), lambda _: None)


def test_a_directory_of_gguf_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelUnavailable, match="holds GGUF, which isn't served"):
        find(tmp_path)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "n_layers"])
def test_a_negative_number_of_parts_is_refused(name: str, model: Path) -> None:
    write(model / "config.json", {name: -1})
    with pytest.raises(ModelUnavailable, match=f"`{name}` is -1"):
        find(model)


def test_the_download_leaves_out_other_forms_of_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("tokenizer.model", "additional_chat_templates/tool_use.jinja", "model.safetensors"),
    }
    others = {
        *("original/consolidated.00.safetensors", "original/params.json", "onnx/model.safetensors"),
        *("consolidated.safetensors", "adapter_model.safetensors", "model.fp16.safetensors"),
        *("model.fp16-00001-of-00002.safetensors", "original/tokenizer.model", "onnx/config.json"),
    }
    taken: list[set[str]] = []

    def download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str], **__: object) -> str:
        names = sorted(wanted | others)
        kept = filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        taken.append(set(kept))
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.model_info", lambda *_, **__: SimpleNamespace(pipeline_tag=None))
    find_checkpoint(ModelConfig(model_id="org/name"), lambda _: None)
    assert taken == [wanted]


def test_the_download_takes_code_whatever_it_is_called(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, weights = ["adapter_model.py", "optimizer_utils.py"], ["adapter_model.bin", "optimizer.bin"]
    taken: list[str] = []

    def download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str], **__: object) -> str:
        names = [*code, *weights]
        taken.extend(
            filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        )
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.model_info", lambda *_, **__: SimpleNamespace(pipeline_tag=None))
    find_checkpoint(ModelConfig(model_id="org/name", trust_remote_code=True), lambda _: None)
    assert taken == code
