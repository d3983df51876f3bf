"""Tables of pickled weights, as `safetensors.py` reads them of headers: only where code is trusted anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inference.errors import ModelUnavailable
from inference.files.safetensors import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


def read_table(file: Path) -> dict[str, Tensor]:
    """Return a file's tensors by name, without their data; raise ModelUnavailable if it can't be read."""
    try:
        found: Any = torch.load(file, map_location="meta", weights_only=True)
        tensors = {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}
    except Exception as error:  # what an unpickler meets in a broken file can raise anything
        said = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
        raise ModelUnavailable(
            f"`{file}` can't be read as weights alone ({said:.200}): it is damaged, or holds more; "
            "download it again, or convert it to safetensors"
        ) from error
    table, at = {}, 0
    for name, each in tensors.items():
        size = each.numel() * each.element_size()
        table[name] = Tensor(_DTYPES.get(each.dtype, "I8"), tuple(each.shape), at, at + size)
        at += size
    return table
