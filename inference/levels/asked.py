"""Whether the level that was found does what was asked for."""

from __future__ import annotations

import torch

from inference.errors import ModelUnavailable
from inference.levels.options import Options
from inference.levels.served import Served


def require_what_was_asked(served: Served, options: Options) -> None:
    """Raise ModelUnavailable if weights, or keys and values, aren't kept as they were asked to be."""
    if options.quantize and not served.quantizes:
        raise ModelUnavailable(
            f"--quantize int8 needs the native kernels, and they can't serve this model: {served.reason}; "
            f"start without --quantize"
        )
    if options.kv_dtype_asked and served.kv_dtype != options.kv_dtype:
        raise ModelUnavailable(
            f"--kv-cache-dtype {_name(options.kv_dtype)} needs the native kernels, and they can't serve this "
            f"model: {served.reason}; its cache is {_name(served.kv_dtype)}: start without --kv-cache-dtype"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
