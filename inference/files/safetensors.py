"""Headers of safetensors files, read without trust: whatever they promise must be in the file.

The form is eight bytes of the header's length, the header (JSON: tensors by name, each with dtype, shape and
the place of its data), and the data (https://github.com/huggingface/safetensors#format). Every library reads
it, and not every one checks it: a table that points beyond the file, into itself or to nowhere is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable

HEADER_BYTES = 100_000_000  # the most that the format's own library reads
TENSORS = 1_000_000
DIMENSIONS = 16
# bits of one item
DTYPES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("F4", "F4_E2M1"), 4),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # byte of its data, counted from where the data begin
    stop: int

    @property
    def count(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)


def read_header(file: Path) -> dict[str, Tensor]:
    """Return a file's tensors by name; raise ModelUnavailable if the header isn't true of the file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            table = json.loads(stream.read(length), object_pairs_hook=_without_duplicates)
        if not isinstance(table, dict) or len(table) > TENSORS:
            raise ValueError(f"the header must be an object of at most {TENSORS} tensors")
        table.pop("__metadata__", None)
        tensors = {name: _tensor(name, described) for name, described in table.items()}
        _check_places(tensors, size - 8 - length)
    except (OSError, ValueError, RecursionError, struct.error) as error:
        raise ModelUnavailable(f"`{file}` is damaged ({error}): delete it and download it again") from error
    return tensors


def _tensor(name: str, described: Any) -> Tensor:
    try:
        dtype, shape, (start, stop) = described["dtype"], described["shape"], described["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{name!r:.80} has no dtype, shape and data_offsets") from None
    numbers = (*shape, start, stop) if isinstance(shape, list) and len(shape) <= DIMENSIONS else (None,)
    if dtype not in DTYPES or not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise ValueError(f"{name!r:.80} has a dtype, a shape or a place that no tensor has")
    tensor = Tensor(dtype, tuple(shape), start, stop)
    bits = tensor.count * DTYPES[dtype]
    if bits != 8 * (stop - start):
        raise ValueError(f"{name!r:.80} has {stop - start} bytes, and its shape takes {bits // 8}")
    return tensor


def _check_places(tensors: Mapping[str, Tensor], size: int) -> None:
    """Raise ValueError unless the tensors fill the data without gaps and without overlaps."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            raise ValueError(f"{name!r:.80} begins at byte {tensor.start}, and the one before ends at {end}")
        end = tensor.stop
    if end != size:
        raise ValueError(f"its tensors have {end} bytes, and there are {size}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands there twice")
    return table
