from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference.config import EngineConfig, Found, ModelConfig, again
from inference.errors import ModelUnavailable
from inference.files.checkpoint import Weights, find_checkpoint, read_weights

ITEM_BYTES = {
    "F8_E4M3": 1,
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "I64": 8,
    "I32": 4,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
}


def unreachable(*_: object, **__: object) -> NoReturn:
    raise ConnectionError("no network")


@pytest.mark.parametrize(
    ("model", "reason"),
    [("~nosuchuser/x", "home directory: give its whole path"), ("x" * 5000, "File name too long")],
)
def test_a_name_that_cannot_be_looked_for_is_refused_with_the_reason(model: str, reason: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"can't be looked for: .*{reason}") as told:
        find_checkpoint(ModelConfig(model_id=model), print)
    assert len(str(told.value)) < 400


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Write a safetensors file of zeros, by its public format."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


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


def hub_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    return kind("no", response=httpx.Response(status, request=httpx.Request("GET", "https://hub.example")))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error(GatedRepoError, 403), r"`org/name` is gated: accept its terms .* HF_TOKEN"),
        (hub_error(RepositoryNotFoundError, 404), r"no model `org/name`, or it is private"),
        (hub_error(RevisionNotFoundError, 404), r"no revision `v9`"),
        (LocalEntryNotFoundError("offline"), r"not in the hub's cache and the hub can't be reached"),
        (ConnectionError("refused"), r"can't be reached \(ConnectionError\): check the network"),
    ],
)
def test_failed_download_says_what_to_do(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelUnavailable, match=message):
        find_checkpoint(ModelConfig(model_id="org/name", revision="v9"), print)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_download_takes_code_if_it_is_trusted_and_pickles_if_there_is_nothing_else(
    pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, set[str]]] = []
    (tmp_path / "config.json").write_text("{}")
    if not pickled:
        write_safetensors(tmp_path / "model.safetensors", {})

    def download(_: str, *, revision: str | None, allow_patterns: list[str], **__: object) -> str:
        asked.append((revision, {"*.py", "*.bin"} & set(allow_patterns)))
        if "*.bin" in allow_patterns:
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.model_info", unreachable)
    found = find_checkpoint(ModelConfig(model_id="org/name", trust_remote_code=True), print)
    assert found.sha == tmp_path.name  # a snapshot's directory is named by its commit
    pickles = [(tmp_path.name, {"*.py", "*.bin"})] if pickled else []
    assert asked == [(None, {"*.py"}), *pickles]
    asked.clear()
    with pytest.raises(ModelUnavailable, match="convert them") if pickled else nullcontext():
        find_checkpoint(ModelConfig(model_id="org/name"), print)
    assert asked == [(None, set())]


@pytest.mark.parametrize(
    "answer", [unreachable, lambda *_, **__: SimpleNamespace(pipeline_tag="summarization")]
)
def test_the_hub_tells_what_a_model_is_for_if_it_can_be_asked(
    answer: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {})
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.model_info", answer)
    found = find_checkpoint(ModelConfig(model_id="org/name"), print)
    assert found.pipeline_tag == (None if answer is unreachable else "summarization")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"q.weight": ("F8_E4M3", [3, 4]), "q.weight_scale": ("F32", [1])}, "`q.weight` in F8_E4M3"),
        ({"q.bias": ("F8_E4M3", [4])}, "`q.bias` in F8_E4M3"),
        ({"q.weight": ("I8", [3, 4])}, "`q.weight` in I8"),
        ({"h.attn.bias": ("U8", [1, 1, 4, 4]), "rows": ("I32", [2, 2]), "a.weight": ("F32", [2, 2])}, None),
    ],
)
def test_weights_in_8_bits_that_nothing_explains_end_the_start(
    tensors: dict[str, tuple[str, list[int]]], said: str | None, tmp_path: Path
) -> None:
    write_safetensors(tmp_path / "model.safetensors", tensors)
    if said is None:
        assert read_weights(tmp_path).floats == 4
        return
    with pytest.raises(ModelUnavailable, match=f"{said}, and nothing says how it was quantised"):
        read_weights(tmp_path)


def test_weights_are_counted_from_all_headers(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": ("BF16", [3, 4]), "b": ("F32", [5])})
    write_safetensors(tmp_path / "b.safetensors", {"q": ("I32", [2, 2]), "s": ("U8", [7])})
    index = {"weight_map": {"w": "a.safetensors", "b": "a.safetensors", "q": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = read_weights(tmp_path)
    assert (weights.floats, weights.other_bytes) == (17, 16 + 7)
    assert weights.size(4) == 17 * 4 + 23
    assert weights.size(4, 1) == 5 * 4 + 12 * 1 + 23  # matrices in another form
    assert weights.dtypes == {"w": "bfloat16", "b": "float32"}


def test_experts_take_16_bits_at_least() -> None:
    weights = Weights(floats=100, other_bytes=3, matrices=90, experts=70)
    for item_bytes, of_experts in ((4, 4), (2, 2), (1, 2)):
        assert weights.size(4, item_bytes) == 10 * 4 + 20 * item_bytes + 70 * of_experts + 3


@pytest.mark.parametrize(("in_16_bits", "each"), [(100, 2), (0, 4)])
def test_what_is_not_rounded_to_8_bits_stays_as_it_is(in_16_bits: int, each: int) -> None:
    weights = Weights(floats=100, other_bytes=3, matrices=90, in_16_bits=in_16_bits, kept=50, kept_heads=30)
    assert weights.size(4, 2) == 10 * 4 + 90 * 2 + 3
    assert weights.size(4, 1) == 10 * 4 + 40 + 50 * each + 30 + 3


@pytest.mark.parametrize(
    ("dtypes", "narrow"), [(["BF16", "BF16", "F32"], True), (["F32", "F32"], False), (["F16"], True)]
)
def test_weights_are_narrow_if_most_tensors_are(tmp_path: Path, dtypes: list[str], narrow: bool) -> None:
    tensors = {str(index): (dtype, [2, 2]) for index, dtype in enumerate(dtypes)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert read_weights(tmp_path).narrow is narrow


def test_weights_are_narrow_by_numbers_not_by_tensors(tmp_path: Path) -> None:
    norms = {str(index): ("F32", [8]) for index in range(5)}
    write_safetensors(tmp_path / "model.safetensors", {"matrix": ("BF16", [8, 8]), **norms})
    assert read_weights(tmp_path).narrow


@pytest.mark.parametrize("content", [b"short", b"not a model at all", struct.pack("<Q", 4) + b"{{{{"])
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors` is damaged"):
        read_weights(tmp_path)


def test_of_a_model_that_was_found_the_hub_is_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the hub is asked")

    sha = "a" * 40
    directory = tmp_path / sha
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    write_safetensors(directory / "model.safetensors", {})
    monkeypatch.setattr("huggingface_hub.model_info", ask)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *_, **asked: str(directory) if asked["local_files_only"] else ask(),
    )
    model = again(
        EngineConfig(model=ModelConfig(model_id="org/name")), Found(sha, "image-text-to-text")
    ).model
    found = find_checkpoint(model, print)
    assert (found.path, found.sha, found.pipeline_tag) == (directory, sha, "image-text-to-text")
