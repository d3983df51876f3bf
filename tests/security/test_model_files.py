"""A model's files are data of strangers: what lies, runs code or leads elsewhere is refused with a reason."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import find_checkpoint, read_weights
from inference.files.safetensors import read_header
from inference.text.chat_template import load_chat_template
from inference.text.files import ModelFiles
from inference.text.pipeline import load_text
from inference.text.tokenizer import load_tokenizer

MARK = "code ran"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 16,
}


class Running:
    """What a pickle can do: run something when it is read."""

    def __init__(self, at: Path) -> None:
        self._at = at

    def __reduce__(self) -> Any:
        return Path.write_text, (self._at, MARK)


def safetensors(file: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    """Write a file with a header, true or not."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return file


def tensor(start: int, stop: int, shape: Any = None, dtype: str = "F32") -> dict[str, Any]:
    shape = [(stop - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def checked(directory: Path, **config: Any) -> Path:
    return find_checkpoint(ModelConfig(model_id=str(directory), **config), print).path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a directory with a small model's description and weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    safetensors(tmp_path / "model.safetensors", {"a": tensor(0, 8)}, bytes(8))
    return tmp_path


HOSTILE: dict[str, tuple[Any, bytes, int | None]] = {
    "header longer than the file": ({}, b"", 10**6),
    "header of 2**63 bytes": ({}, b"", 2**63),
    "no JSON": (b"{", b"", None),
    "nested without end": (b"[" * 100_000, b"", None),
    "a list": ([], b"", None),
    "a tensor that is none": ({"a": 5}, b"", None),
    "no place": ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4), None),
    "beyond the file": ({"a": tensor(0, 400)}, bytes(4), None),
    "before it begins": ({"a": tensor(-4, 0, [1])}, bytes(4), None),
    "the end before the beginning": ({"a": tensor(8, 4, [1])}, bytes(8), None),
    "a shape larger than its bytes": ({"a": tensor(0, 4, [2**40, 2**20])}, bytes(4), None),
    "a shape whose product is none in 64 bits": ({"a": tensor(0, 0, [2**32, 2**32])}, b"", None),
    "a negative shape": ({"a": tensor(0, 4, [-1, -1])}, bytes(4), None),
    "a shape of floats": ({"a": tensor(0, 4, [1.0])}, bytes(4), None),
    "a shape of booleans": ({"a": tensor(0, 4, [True])}, bytes(4), None),
    "a shape of 10,000 dimensions": ({"a": tensor(0, 4, [1] * 10_000)}, bytes(4), None),
    "an unknown type": ({"a": tensor(0, 4, [1], "O")}, bytes(4), None),
    "two in one place": ({"a": tensor(0, 8), "b": tensor(0, 8)}, bytes(8), None),
    "overlapping": ({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12), None),
    "a gap": ({"a": tensor(0, 4), "b": tensor(8, 12)}, bytes(12), None),
    "bytes of nobody": ({"a": tensor(0, 4)}, bytes(400), None),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        bytes(2),
        None,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_is_not_true_of_its_file_is_refused(name: str, tmp_path: Path) -> None:
    header, data, length = HOSTILE[name]
    file = safetensors(tmp_path / "model.safetensors", header, data, length=length)
    with pytest.raises(ModelUnavailable, match="is damaged") as refusal:
        read_weights(tmp_path)
    assert str(file) in str(refusal.value)
    assert len(str(refusal.value)) < 1000


@given(
    sizes=st.lists(st.integers(0, 6), max_size=5),
    where=st.integers(0, 500),
    byte=st.integers(0, 255),
)
def test_a_header_with_any_byte_changed_is_refused_or_describes_the_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], where: int, byte: int
) -> None:
    header, at = {}, 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = tensor(at, at + 4 * size)
        at += 4 * size
    file = safetensors(tmp_path_factory.mktemp("any") / "a.safetensors", header, bytes(at))
    raw = bytearray(file.read_bytes())
    raw[where % len(raw)] = byte
    file.write_bytes(raw)
    try:
        tensors = read_header(file)
    except ModelUnavailable:
        return
    assert sum(each.stop - each.start for each in tensors.values()) == at
    assert all(0 <= each.start <= each.stop <= at for each in tensors.values())


def test_the_weights_that_ship_and_those_that_the_format_writes_are_read(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy").save_file
    np = pytest.importorskip("numpy")
    given = {"a": np.zeros((2, 3), np.float16), "b": np.zeros((), np.int64), "empty": np.zeros((0, 4))}
    save(given, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = read_header(tmp_path / "a.safetensors")
    assert {name: each.shape for name, each in found.items()} == {"a": (2, 3), "b": (), "empty": (0, 4)}
    assert read_weights(EMBEDDED_MODEL).floats > 1000


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_never_read(name: str, model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Running(model / "ran")))
    with pytest.raises(ModelUnavailable, match=r"no `\*\.safetensors` file"):
        checked(model)
    assert not (model / "ran").exists()


def test_a_model_with_code_runs_none_of_it(model: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("inference.loading.model")
    assert torch
    code = f"from pathlib import Path\nPath({str(model / 'ran')!r}).write_text({MARK!r})\n"
    (model / "configuration_own.py").write_text(code)
    (model / "modeling_own.py").write_text(code)
    for kind in ("llama", "own"):  # the first can be served without the code, the second can't
        auto = {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnModel",
            "AutoTokenizer": ["modeling_own.OwnTokenizer", None],
        }
        (model / "config.json").write_text(json.dumps({**LLAMA, "model_type": kind, "auto_map": auto}))
        config = ModelConfig(model_id=str(model))
        with suppress(ModelUnavailable):
            transformers.read_config(find_checkpoint(config, print), config)
        with pytest.raises(ModelUnavailable):
            load_text(config)
    assert not (model / "ran").exists()


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 1e300),
        ("n_layer", 2**31),
        ("num_local_experts", 10**6),
        ("hidden_size", 2**40),
        ("vocab_size", 2**60),
        ("head_dim", 10**30),
    ],
)
def test_a_configuration_beyond_reason_is_refused(member: str, value: float, model: Path) -> None:
    for described in ({**LLAMA, member: value}, {**LLAMA, "text_config": {member: value}}):
        (model / "config.json").write_text(json.dumps(described))
        with pytest.raises(ModelUnavailable, match=f"`{member}` is"):
            checked(model)


@pytest.mark.parametrize("text", ["{", "[]", "5", "[" * 100_000, '{"a":' * 60 + "1" + "}" * 60, "\udcff"])
def test_a_configuration_that_is_none_is_refused(text: str, model: Path) -> None:
    (model / "config.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ModelUnavailable, match=r"config\.json"):
        checked(model)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", ""])
def test_an_index_that_leads_out_of_the_directory_is_refused(name: str, model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelUnavailable, match="names the file"):
        checked(model)


def test_an_index_of_files_beside_it_is_taken(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors"}})
    )
    assert checked(model) == model


@pytest.mark.parametrize("text", ["{}", "[" * 100_000, "null", '{"model": {"type": "BPE"}}', ""])
def test_a_tokenizer_that_is_none_is_refused(text: str, model: Path) -> None:
    (model / "tokenizer.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json"):
        load_tokenizer(ModelFiles(model), ModelConfig())


def test_a_vocabulary_with_a_huge_id_is_refused(model: Path) -> None:
    raw = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text())
    raw["model"]["vocab"]["huge"] = 2**32 - 1
    (model / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(ModelUnavailable, match="4294967295"):
        load_tokenizer(ModelFiles(model), ModelConfig())


def test_a_template_that_is_broken_or_endless_does_not_hold_up_the_start(model: Path) -> None:
    shutil.copy(EMBEDDED_MODEL / "tokenizer.json", model)
    for source in ("{% for", "{{ " * 10_000, "{{ 'x' ** 2 }}"):
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
        load_chat_template(ModelFiles(model), ModelConfig())


def test_a_file_that_is_no_file_is_not_read(model: Path) -> None:
    (model / "tokenizer.json").mkdir()
    assert ModelFiles(model).path("tokenizer.json") is None
