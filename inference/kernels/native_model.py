"""A whole model in one call into C: token ids in, logits and their statistics out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.native import Library, PackedLinear
from inference.kernels.native_attention import NativeStep, StepStruct
from inference.kernels.native_layers import NativeStack

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum Kind
_NO_MEMORY, _NO_ROW = -1, -2  # what C returns


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWeights:
    """What is around the layers: logits = head(norm(layers(table[id] * embedding_factor)) * head_factor)."""

    table: Tensor | PackedLinear  # (vocabulary, hidden); not of int8
    head: PackedLinear  # hidden -> vocabulary
    norm: Tensor  # (hidden,): of an RMS norm, as in LayerWeights
    eps: float
    embedding_factor: float = 1.0
    head_factor: float = 1.0


class Logits(NamedTuple):
    """Of n rows, with what `row_statistics` says of each."""

    values: Tensor  # (n, vocabulary), float32
    tokens: NDArray[np.int64]  # (n,)
    maxima: NDArray[np.float32]  # (n,)
    totals: NDArray[np.float32]  # (n,)


class _Ends(ctypes.Structure):
    """`Ends` of layer.h."""

    _fields_ = (
        ("packed_table", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_kind", ctypes.c_int64),
        ("vocabulary", ctypes.c_int64),
        ("head", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("eps", "embedding_factor", "head_factor")),
    )


class _Tokens(ctypes.Structure):
    """`Tokens` of layer.h, with `Statistics` of rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "rows")),
        ("count", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "row_count", "columns")),
        *((name, ctypes.c_void_p) for name in ("indices", "maxima", "sums", "scratch")),
    )


class NativeModel:
    """Embedding, layers, last norm and head of a model, run as one task of the library's threads.

    Between the calls of C for its parts the threads would sleep, and what Python reads meanwhile would
    come from memory: a step's weights have passed through all caches since.
    """

    def __init__(self, library: Library, stack: NativeStack, ends: EndWeights) -> None:
        self._library = library
        self._stack = stack
        self._run = _declare(library.functions).parley_model_run
        self._columns = ends.head.n
        self._ends, self._held = _ends_struct(ends, stack.shape.hidden)
        self._part_bytes = library.functions.parley_row_scratch(1, self._columns)

    def run(
        self,
        ids: NDArray[np.int64],
        rows: NDArray[np.int64],
        cos: Sequence[Tensor],
        sin: Sequence[Tensor],
        step: NativeStep,
        *,
        statistics: bool = True,
    ) -> Logits:
        """Return the logits of some of a step's tokens, `rows` (n,), as the head gives them.

        Shapes: ids (tokens,); cos and sin (positions, rotary_dim), contiguous float32, one of each for
        every rotary embedding that the layers name, with a row for every position of the step. Without
        `statistics` those parts of the result mean nothing. Raises IndexError for an id that the table
        doesn't have, MemoryError.
        """
        assert ids.shape == (step.tokens,), "an id for each of the step's tokens"
        assert ids.dtype == rows.dtype == np.int64, "C reads them"
        assert ids.flags.c_contiguous, "C reads them"
        assert rows.flags.c_contiguous, "C reads them"
        assert len(rows) == 0 or 0 <= rows.min() <= rows.max() < step.tokens, "rows are of the step's tokens"
        self._stack.check_tables(cos, sin, step.last)
        logits = _room(len(rows), self._columns)
        scratch = torch.empty(self._part_bytes * len(rows), dtype=torch.uint8)
        failed = self._run(
            self._library.handle,
            self._stack.handle,
            self._ends,
            step.struct,
            *(_pointers(cos), _pointers(sin)),
            _tokens_struct(ids, rows, logits, scratch, statistics=statistics),
        )
        if failed == _NO_ROW:
            raise IndexError(f"ids must be from 0 to {self._ends.vocabulary - 1}")
        if failed == _NO_MEMORY:
            raise MemoryError(f"No memory for a step of {step.tokens} tokens")
        return logits


def _room(count: int, columns: int) -> Logits:
    maxima, totals = np.empty((2, count), dtype=np.float32)
    return Logits(torch.empty((count, columns)), np.empty(count, dtype=np.int64), maxima, totals)


def _tokens_struct(
    ids: NDArray[np.int64], rows: NDArray[np.int64], logits: Logits, scratch: Tensor, *, statistics: bool
) -> _Tokens:
    (count, columns), at = logits.values.shape, logits.values.data_ptr()
    indices = logits.tokens.ctypes.data if statistics else None
    return _Tokens(
        *(ids.ctypes.data, rows.ctypes.data, count, at),
        *(at, columns, count, columns),
        *(indices, logits.maxima.ctypes.data, logits.totals.ctypes.data, scratch.data_ptr()),
    )


def _ends_struct(ends: EndWeights, hidden: int) -> tuple[_Ends, tuple[object, ...]]:
    """Return the struct, and what it points to."""
    assert ends.head.k == hidden, "the head reads what the layers give"
    assert ends.norm.shape == (hidden,), "a weight for each hidden number"
    norm, table, packed, kind = ends.norm.detach().float().contiguous(), None, None, 0
    if isinstance(ends.table, PackedLinear):
        assert ends.table.k == hidden, "a hidden number for each column of the table"
        packed, vocabulary = ctypes.addressof(ends.table.struct), ends.table.n
    else:
        assert ends.table.shape[1] == hidden, "a hidden number for each column of the table"
        table, vocabulary = ends.table.detach().contiguous(), len(ends.table)
        kind = _KINDS[table.dtype]
    struct = _Ends(
        *(packed, None if table is None else table.data_ptr(), kind, vocabulary),
        *(ctypes.addressof(ends.head.struct), norm.data_ptr()),
        *(ends.eps, ends.embedding_factor, ends.head_factor),
    )
    return struct, (ends, norm, table)


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    functions.parley_model_run.restype = ctypes.c_int
    functions.parley_model_run.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.POINTER(_Ends), ctypes.POINTER(StepStruct)),
        *(ctypes.c_void_p, ctypes.c_void_p),
        ctypes.POINTER(_Tokens),
    )
    return functions
