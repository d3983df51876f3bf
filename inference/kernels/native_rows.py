"""Statistics of rows of logits, by the C extension."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.kernels.native import Library, aligned


def row_statistics(library: Library, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (argmax int64, maximum, logsumexp float32), each (rows), of logits (rows, v) float32.

    Of equal maxima the lowest index counts; a row with NaN has the first NaN's index, and NaN for the rest.
    """
    if logits.dtype != torch.float32 or logits.dim() != 2 or not logits.shape[1]:
        raise TypeError(f"logits must be float32 (rows, v), not {logits.dtype} {tuple(logits.shape)}")
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, columns = logits.shape
    indices = torch.empty(rows, dtype=torch.int64)
    maxima, sums = torch.empty(rows), torch.empty(rows)
    scratch = aligned(library.functions.parley_row_scratch(rows, columns))
    library.functions.parley_row_statistics(
        library.handle,
        logits.data_ptr(),
        logits.stride(0),
        rows,
        columns,
        *(tensor.data_ptr() for tensor in (indices, maxima, sums, scratch)),
    )
    return indices, maxima, sums
