from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from inference.checkpoint import find_checkpoint, read_weights, tokenizer_eos
from inference.config import ModelConfig
from inference.errors import ModelUnavailable


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Write the header of a safetensors file, whose format is public; the data isn't read here."""
    header = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def find(directory: Path, *, trust_remote_code: bool = False) -> Path:
    config = ModelConfig(model_id=str(directory), trust_remote_code=trust_remote_code)
    return find_checkpoint(config, print).path


def test_directory_with_configuration_and_weights_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {})
    assert find(tmp_path) == tmp_path


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no directory .*/nowhere"):
        find(tmp_path / "nowhere")


def test_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no `config.json`"):
        find(tmp_path)


def test_pickled_weights_are_refused_unless_code_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match=r"pickled weights.*--trust-remote-code"):
        find(tmp_path)
    assert find(tmp_path, trust_remote_code=True) == tmp_path


@pytest.mark.parametrize("name", ["not a name", "org/.."])
def test_impossible_hub_id_is_refused_without_the_network(name: str) -> None:
    with pytest.raises(ModelUnavailable, match="neither a directory nor a hub id"):
        find_checkpoint(ModelConfig(model_id=name), print)


def test_weights_are_counted_from_all_headers(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": ("BF16", [3, 4]), "b": ("F32", [5])})
    write_safetensors(tmp_path / "b.safetensors", {"q": ("I32", [2, 2]), "s": ("F8_E4M3", [7])})
    weights = read_weights(tmp_path)
    assert (weights.floats, weights.other_bytes) == (17, 16 + 7)
    assert weights.size(4) == 17 * 4 + 23


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_tokenizers_eos_is_found(tmp_path: Path, eos: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    added = [{"id": 4, "content": "<s>"}, {"id": 5, "content": "</s>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert tokenizer_eos(tmp_path) == (5,)


def test_tokenizer_without_eos_has_none(tmp_path: Path) -> None:
    assert tokenizer_eos(tmp_path) == ()
