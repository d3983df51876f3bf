from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.errors import ModelUnavailable
from inference.quantised.method import held_dtype, read_method


def described(directory: Path, **files: Any) -> Path:
    """Return a directory with JSON files, by their names without the ending."""
    for name, content in ({"config": {}} | files).items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("settings", "name", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", "gptq, 4 bits"),
        ({"quant_method": "AWQ", "w_bit": 4}, "awq", "awq, 4 bits"),
        ({"quant_method": "fp8"}, "fp8", "fp8"),
        ({"load_in_4bit": True}, "bitsandbytes", "bitsandbytes, 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", "bitsandbytes, 8 bits"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "compressed-tensors",
            "compressed-tensors, pack-quantized",
        ),
        (
            {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 3},
            "gptq",
            "gptq, 3 bits",
        ),
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, "awq", "awq"),
    ],
)
def test_methods_go_by_their_names(settings: dict[str, Any], name: str, said: str, tmp_path: Path) -> None:
    for config in ({"quantization_config": settings}, {"text_config": {"quantization_config": settings}}):
        method = read_method(described(tmp_path, config=config))
        assert method is not None
        assert (method.name, method.said) == (name, said)


def test_files_beside_tell_of_a_method_where_the_configuration_does_not(tmp_path: Path) -> None:
    assert read_method(described(tmp_path)) is None
    method = read_method(described(tmp_path, quantize_config={"bits": 4, "group_size": 64}))
    assert method is not None
    assert method.name == "gptq"
    assert method.number("group_size", default=-1) == 64
    own = described(tmp_path, hf_quant_config={"producer": {}, "quantization": {"quant_algo": "FP8"}})
    (tmp_path / "quantize_config.json").unlink(missing_ok=True)
    method = read_method(own)
    assert method is not None
    assert (method.name, method.word("quant_algo")) == ("modelopt", "fp8")
    own = described(tmp_path, config={"compression_config": {"format": "dense"}})
    method = read_method(own)
    assert method is not None
    assert method.name == "compressed-tensors"


def test_awq_of_old_stands_beside_its_model(tmp_path: Path) -> None:
    method = read_method(described(tmp_path, quant_config={"w_bit": 4, "q_group_size": 128}))
    assert method is not None
    assert method.name == "awq"
    assert method.number("group_size", "q_group_size", default=1) == 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "`quant_method` of `quantization_config` is '', and gptq, awq"),
        (
            {"quant_method": "aqlm"},
            "is 'aqlm', and gptq, awq, .* can be read: give the model that it was made",
        ),
        ({"quant_method": ["gptq"]}, "by a method that isn't known"),
        ({"quant_method": "auto-round"}, "is 'auto-round'"),
        ("gptq", "`quantization_config` of config.json must be an object, not 'gptq'"),
    ],
)
def test_what_is_not_known_is_refused(settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        read_method(described(tmp_path, config={"quantization_config": settings}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"dtype": "float32"}, None),
        ({"dtype": "bfloat16"}, "BF16"),
        ({"torch_dtype": "float16"}, "F16"),
        ({"text_config": {"dtype": "bfloat16"}}, "BF16"),
        ({"dtype": ["x"], "text_config": 3}, None),
    ],
)
def test_weights_are_held_in_the_16_bits_that_the_model_is_in(
    config: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    assert held_dtype(described(tmp_path, config=config)) == expected
