"""What numbers a model is kept and computed in, by the settings and by what the machine is good at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from inference.config import EngineConfig, ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import Weights
from inference.kernels import native_screen
from inference.kernels.native import Library
from inference.planning.described import head_shape
from inference.quantised.asked import FOUR_BITS, INT8

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # of the setting, where it isn't auto


def rounded_dtype(config: ModelConfig) -> torch.dtype | None:
    """Return the 16 bits that linears' weights are rounded to on CPU; None: they stay as they are."""
    dtype = DTYPES.get(config.dtype)
    return None if dtype is torch.float32 else dtype


def linears_dtype(
    config: EngineConfig, weights: Weights, dtype: torch.dtype, library: Library | None
) -> torch.dtype:
    """Return what linears will be kept in, as far as the files' headers say; it may turn out narrower."""
    if library is None:
        return dtype
    if config.model.quantize == INT8:
        return torch.int8
    if rounds_inputs(config, library):
        return torch.bfloat16
    rounded = rounded_dtype(config.model) or (torch.bfloat16 if weights.narrow else None)
    return rounded if rounded is not None and config.narrow_weights else dtype


def kv_dtype(config: EngineConfig, library: Library | None, without: str, dtype: torch.dtype) -> torch.dtype:
    """Return what keys and values are kept in; raise ModelUnavailable if what is asked for can't be.

    In 16 bits, unless told otherwise, only where linears round what they read anyway.
    """
    asked = _KV_DTYPES.get(config.kv_cache_dtype)
    if library is not None:
        rounds = config.model.quantize == INT8 or rounds_inputs(config, library)
        return asked or (torch.bfloat16 if rounds else torch.float32)
    if asked not in (None, dtype):
        raise ModelUnavailable(
            f"--kv-cache-dtype {config.kv_cache_dtype} needs the native kernels, but {without}; without them "
            f"the cache has the type that is computed in, {str(dtype).removeprefix('torch.')}: leave it out"
        )
    return dtype


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast linears' products are beside float32's, measured, and less to be safe."""

    int8: float
    rounded: float  # bfloat16, by inputs that are rounded to it
    bfloat16: float  # by inputs in float32


_VECTORS = Speeds(int8=3.0, rounded=2.0, bfloat16=1.0)
_TILES = Speeds(int8=7.0, rounded=4.5, bfloat16=2.7)


def product_speed(
    config: EngineConfig, weights: Weights, dtype: torch.dtype, library: Library | None
) -> float:
    """Return how fast linears' products are beside float32's, as far as the files' headers say."""
    if config.model.quantize in FOUR_BITS:
        return 1.0
    speeds = _TILES if library is not None and library.has_amx else _VECTORS
    if library is not None and config.model.quantize == INT8 and library.has_vnni:
        return speeds.int8
    if rounds_inputs(config, library):
        return speeds.rounded
    is_bfloat16 = linears_dtype(config, weights, dtype, library) == torch.bfloat16
    return speeds.bfloat16 if is_bfloat16 and not weights.mostly_float16 else 1.0


def screen_bytes(config: EngineConfig, library: Library | None, described: PreTrainedConfig) -> int:
    """Return what the copy of a model's head takes at most: one whose layers can't be fused has none."""
    wanted = config.screen_head and config.fuse_layers
    capped = getattr(described.get_text_config(), "final_logit_softcapping", None) is not None
    if not wanted or capped or library is None:
        return 0
    is_int8 = config.model.quantize == INT8
    return native_screen.screen_bytes(library, *head_shape(described), is_int8=is_int8)


def rounds_inputs(config: EngineConfig, library: Library | None) -> bool:
    """Return whether linears round what they read to bfloat16; those in few bits don't."""
    asked = config.model.dtype == "bfloat16" and config.model.quantize not in FOUR_BITS
    return asked and library is not None and library.has_bf16


def kept_bits(config: EngineConfig, library: Library | None, *, on_device: bool) -> tuple[int, ...]:
    """Return in which bits weights can stay; those of shards and of what rounds in none.

    With AMX those of files are expanded: it multiplies 16 bits faster than other instructions fewer.
    `on_device`: it computes as GPUs do, by kernels of its own.
    """
    if not config.compress_weights or config.shards > 1:
        return ()
    if on_device:
        return (4, 8) if config.native_kernels else ()
    if (
        library is None
        or not config.narrow_weights
        or config.model.quantize == INT8
        or rounds_inputs(config, library)
    ):
        return ()
    return () if library.has_amx and config.model.quantize not in FOUR_BITS else (4, 8)
