"""Which numbers are multiplied how fast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from inference.config import EngineConfig, ModelConfig
from inference.files.checkpoint import Weights
from inference.kernels.native import Library
from inference.planning.precision import product_speed


def speed(*, amx: bool, stored: str, dtype: str = "auto", quantize: str | None = None) -> float:
    """Return what a CPU with AVX-512, VNNI and BF16 is said to do, with AMX or without."""
    library = cast(Library, SimpleNamespace(has_amx=amx, has_bf16=True, has_vnni=True))
    config = EngineConfig(model=ModelConfig(model_id="model", dtype=dtype, quantize=quantize))
    halves = 0 if stored == "float32" else 100
    weights = Weights(100, 0, 90, {"layer.weight": stored, "head.weight": stored}, halves)
    return product_speed(config, weights, torch.float32, library)


@pytest.mark.parametrize("amx", [False, True])
def test_what_is_narrower_is_multiplied_faster(amx: bool) -> None:
    float32 = speed(amx=amx, stored="float32")
    bfloat16 = speed(amx=amx, stored="bfloat16")
    rounded = speed(amx=amx, stored="bfloat16", dtype="bfloat16")
    int8 = speed(amx=amx, stored="bfloat16", quantize="int8")
    assert float32 == 1.0
    assert float32 <= bfloat16 < rounded < int8


@pytest.mark.parametrize(
    ("stored", "dtype", "quantize", "faster"),
    [
        ("float32", "auto", None, False),
        ("float16", "auto", None, False),
        ("float16", "bfloat16", None, True),
        ("bfloat16", "auto", None, True),
        ("bfloat16", "bfloat16", None, True),
        ("float16", "auto", "int8", True),
    ],
)
def test_amx_multiplies_bfloat16_and_int8_faster_and_no_others(
    stored: str, dtype: str, quantize: str | None, faster: bool
) -> None:
    without, with_it = (
        speed(amx=amx, stored=stored, dtype=dtype, quantize=quantize) for amx in (False, True)
    )
    assert (without < with_it) is faster


def test_torch_multiplies_everything_as_it_does_float32() -> None:
    weights = Weights(100, 0, 90, {"layer.weight": "bfloat16"}, 100)
    assert product_speed(EngineConfig(), weights, torch.bfloat16, None) == 1.0
