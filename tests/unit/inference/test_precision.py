"""Which numbers are multiplied how fast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from inference.config import EngineConfig, ModelConfig
from inference.kernels.native import Library
from inference.precision import product_speed


def speed(*, amx: bool, dtype: str = "auto", quantize: str | None = None, kept: torch.dtype) -> float:
    """Return what a CPU with AVX-512, VNNI and BF16 is said to do, with AMX or without."""
    library = cast(Library, SimpleNamespace(has_amx=amx, has_bf16=True, has_vnni=True))
    config = EngineConfig(model=ModelConfig(model_id="model", dtype=dtype, quantize=quantize))
    return product_speed(config, library, kept)


@pytest.mark.parametrize("amx", [False, True])
def test_what_is_narrower_is_multiplied_faster(amx: bool) -> None:
    float32 = speed(amx=amx, kept=torch.float32)
    bfloat16 = speed(amx=amx, kept=torch.bfloat16)
    rounded = speed(amx=amx, kept=torch.bfloat16, dtype="bfloat16")
    int8 = speed(amx=amx, kept=torch.int8, quantize="int8")
    assert float32 == 1.0
    assert float32 <= bfloat16 < rounded < int8


def test_amx_multiplies_bfloat16_and_int8_faster_and_float32_no_faster() -> None:
    for kept, dtype, quantize, faster in (
        (torch.float32, "auto", None, False),
        (torch.float16, "auto", None, False),
        (torch.bfloat16, "auto", None, True),
        (torch.bfloat16, "bfloat16", None, True),
        (torch.int8, "auto", "int8", True),
    ):
        without, with_it = (
            speed(amx=amx, kept=kept, dtype=dtype, quantize=quantize) for amx in (False, True)
        )
        assert (without < with_it) is faster


def test_torch_multiplies_everything_as_it_does_float32() -> None:
    assert product_speed(EngineConfig(), None, torch.bfloat16) == 1.0
