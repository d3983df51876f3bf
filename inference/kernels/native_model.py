"""A whole model in one call into C: token ids in, logits and their statistics out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.layer_checks import norm_shape
from inference.kernels.native import Library, PackedLinear, address
from inference.kernels.native_attention import NativeStep, StepStruct
from inference.kernels.native_layers import NativeStack, StackShape
from inference.kernels.native_per_layer import PerLayerInputs, PerLayerInputsStruct
from inference.kernels.native_screen import Screen, ScreenStruct

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum Kind
_INTEGER = np.dtype(np.int64).str
_NO_ROW = -2  # what C returns, beside what NativeStack knows
_REST_STEPS = 256  # without a screen, after one in which it left too much
_KEPT_BYTES = 16 * 2**20  # of logits, for the next step of as many rows


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWeights:
    """What is around the layers: logits = head(norm(layers(table[id] * embedding_factor)) * head_factor)."""

    table: Tensor | PackedLinear  # (vocabulary, hidden); not of int8
    head: PackedLinear  # hidden -> vocabulary
    norm: Tensor  # (hidden,), or (2, hidden): as in LayerWeights
    eps: float
    embedding_factor: float = 1.0
    head_factor: float = 1.0
    screen: Screen | None = None  # of the head
    positions: Tensor | None = None  # (positions, hidden): added to what the embedding gives
    first_norm: Tensor | None = None  # of what the layers are given, as theirs
    per_layer: PerLayerInputs | None = None


class Logits(NamedTuple):
    """Of n rows, with what `row_statistics` says of each: until the model's next step."""

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
        ("screen", ctypes.POINTER(ScreenStruct)),
        ("trims", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("positions", "first_norm", "per_layer")),
    )


class _Tokens(ctypes.Structure):
    """`Tokens` of layer.h, with `Statistics` of rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "rows")),
        ("count", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "row_count", "columns")),
        *((name, ctypes.c_void_p) for name in ("indices", "maxima", "sums", "scratch", "adapters")),
        ("only", ctypes.c_int64),
        ("given", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("given_count", "by_row")),
    )


class _Rotations:
    """Tables that were checked, as C takes them."""

    def __init__(self, cos: Sequence[Tensor], sin: Sequence[Tensor]) -> None:
        self._tables = *cos, *sin
        self._positions = min((table.shape[0] for table in self._tables), default=1 << 62)
        self.pointers = _pointers(cos), _pointers(sin)

    def holds(self, cos: Sequence[Tensor], sin: Sequence[Tensor], last: int) -> bool:
        """Return whether these are the tables, and have a row for each position up to `last`."""
        given = *cos, *sin
        same = len(given) == len(self._tables) and all(map(is_, given, self._tables))
        return same and last < self._positions


class _Room:
    """What a step of `count` rows of logits is told and says, kept for the next; but not very many logits.

    To ask torch for memory takes 0.1 ms: while a step computes, all that torch's dispatch reads leaves the
    caches.
    """

    def __init__(self, count: int, columns: int, part_bytes: int) -> None:
        self.count = count
        self._shape = count, columns
        self._values = torch.empty(self._shape) if 4 * count * columns <= _KEPT_BYTES else None
        self._at = 0 if self._values is None else self._values.data_ptr()
        self.tokens = np.empty(count, dtype=np.int64)
        self.maxima, self.totals = np.empty((2, count), dtype=np.float32)
        self._scratch = torch.empty(part_bytes * count, dtype=torch.uint8)
        self._indices = address(self.tokens)
        self.struct = _Tokens(
            *(None, None, count, None),
            *(None, columns, count, columns),
            *(None, address(self.maxima), address(self.totals), self._scratch.data_ptr(), None),
            *(0, None, 0, 0),
        )

    def fill(
        self, ids: NDArray[np.int64], rows: NDArray[np.int64], *, statistics: bool, tokens_only: bool
    ) -> Tensor:
        """Say what the step computes; return where its logits will be."""
        values, at = self._values, self._at
        if values is None:
            values = torch.empty(self._shape)
            at = values.data_ptr()
        struct = self.struct
        struct.ids, struct.rows, struct.logits, struct.x = _integers(ids), _integers(rows), at, at
        struct.indices = self._indices if statistics else None
        struct.only = tokens_only
        return values


class NativeModel:
    """Embedding, layers, last norm and head of a model, run as one task of the library's threads.

    Between the calls of C for its parts the threads would sleep, and what Python reads meanwhile would
    come from memory: a step's weights have passed through all caches since.
    """

    def __init__(self, library: Library, stack: NativeStack, ends: EndWeights, *, trims: bool = True) -> None:
        """`trims`: of the last layer only what logits depend on, and keys and values, are computed."""
        self._library = library
        self._stack = stack
        self._run = _declare(library.functions).parley_model_run
        made = 0 if ends.per_layer is None else ends.per_layer.projection.n
        assert made >= stack.inputs_read, "inputs of each layer are made"
        self._columns = ends.head.n
        self._ends, self._held = _ends_struct(ends, stack.shape, trims)
        self._positions = min(stack.positions, 1 << 62 if ends.positions is None else len(ends.positions))
        self._screens = ends.screen is not None
        self._rest = 0  # steps until it is tried again
        self._part_bytes = library.functions.parley_row_scratch(1, self._columns)
        self._room = _Room(0, self._columns, self._part_bytes)
        self._rotations: _Rotations | None = None  # of the last step
        self._rows: NDArray[np.int64] | None = None  # of the last step, which may be the next one's
        self._last_row = -1

    def run(
        self,
        ids: NDArray[np.int64],
        rows: NDArray[np.int64],
        cos: Sequence[Tensor],
        sin: Sequence[Tensor],
        step: NativeStep,
        adapters: NDArray[np.int32] | None = None,
        *,
        statistics: bool = True,
        tokens_only: bool = False,
        given: Tensor | None = None,
        by_row: bool = False,
    ) -> Logits:
        """Return the logits of some of a step's tokens, the rising `rows` (n,), as the head gives them.

        Shapes: ids (tokens,); cos and sin (positions, rotary_dim), contiguous float32, one of each for
        every rotary embedding that the layers name, with a row for every position of the step, or
        `by_row` for each of its tokens; adapters (tokens,), the one that computes each token, -1 for
        none, or None: of all. Ids from the vocabulary's size on count the rows of `given` (m, hidden),
        contiguous float32, which the layers get as they are. Without `statistics` those parts of the
        result mean nothing. With `tokens_only`, where the head has a screen, only tokens and maxima do.
        Raises IndexError for an id that neither the table nor `given` has, MemoryError.
        """
        assert len(ids) == step.tokens, "an id for each of the step's tokens"
        if rows is not self._rows:
            assert (np.diff(rows, prepend=-1) > 0).all(), "rows are of the step's tokens, and rise"
            self._rows, self._last_row = rows, int(rows.max(initial=-1))
        assert self._last_row < step.tokens, "rows are of the step's tokens"
        assert step.last < self._positions, "what depends on positions is known of each"
        last = step.tokens - 1 if by_row else step.last
        if self._rotations is None or not self._rotations.holds(cos, sin, last):
            self._stack.check_tables(cos, sin, last)
            self._rotations = _Rotations(cos, sin)
        if len(rows) != self._room.count:
            self._room = _Room(len(rows), self._columns, self._part_bytes)
        room = self._room
        screened = self._screens and tokens_only and statistics and self._is_due()
        values = room.fill(ids, rows, statistics=statistics, tokens_only=screened)
        room.struct.adapters = self._stack.check_adapters(adapters, step.tokens)
        room.struct.given, room.struct.given_count = self._check_given(given)
        room.struct.by_row = by_row
        failed = self._run(
            self._library.handle,
            self._stack.handle,
            self._ends,
            step.struct,
            *self._rotations.pointers,
            room.struct,
        )
        if failed == _NO_ROW:
            raise IndexError(f"ids must be from 0 to {self.vocabulary + room.struct.given_count - 1}")
        self._stack.check(failed, step.tokens)
        if screened and room.totals[0] != room.maxima[0]:  # all has been computed after it
            self._rest = _REST_STEPS
        return Logits(values, room.tokens, room.maxima, room.maxima if screened else room.totals)

    @property
    def vocabulary(self) -> int:
        """Return how many rows the embedding has."""
        rows: int = self._ends.vocabulary
        return rows

    def _check_given(self, given: Tensor | None) -> tuple[int | None, int]:
        """Return where C reads rows that are no embedding's, and how many there are."""
        if given is None:
            return None, 0
        assert given.dim() == 2, "rows"
        assert given.shape[1] == self._stack.shape.hidden, "what the layers are given"
        assert given.dtype is torch.float32, "C reads float32"
        assert given.is_contiguous(), "C reads one after the other"
        return given.data_ptr(), len(given)

    def _is_due(self) -> bool:
        """Return whether the screen is to be tried: where logits are flat, it leaves too much each time."""
        self._rest = max(self._rest - 1, 0)
        return not self._rest


def _integers(column: NDArray[np.int64]) -> int:
    """Return where C reads them."""
    about = column.__array_interface__
    assert about["typestr"] == _INTEGER, "C reads int64"
    assert about["strides"] is None, "C reads one after the other"
    at: int = about["data"][0]
    return at


def _ends_struct(ends: EndWeights, shape: StackShape, trims: bool) -> tuple[_Ends, tuple[object, ...]]:
    """Return the struct, and what it points to."""
    hidden = shape.hidden
    assert ends.head.k == hidden, "the head reads what the layers give"
    assert ends.positions is None or ends.positions.shape[1] == hidden, "a row for each position"
    for each in (ends.norm, ends.first_norm):
        assert each is None or each.shape == norm_shape(shape), "a weight for each hidden number"
    table, packed, kind = None, None, 0
    norm, positions, first_norm = (
        None if each is None else each.detach().float().contiguous()
        for each in (ends.norm, ends.positions, ends.first_norm)
    )
    assert norm is not None, "what the head reads is normalised"
    if isinstance(ends.table, PackedLinear):
        assert ends.table.k == hidden, "a hidden number for each column of the table"
        packed, vocabulary = ctypes.addressof(ends.table.struct), ends.table.n
    else:
        assert ends.table.shape[1] == hidden, "a hidden number for each column of the table"
        table, vocabulary = ends.table.detach().contiguous(), len(ends.table)
        kind = _KINDS[table.dtype]
    screen = None if ends.screen is None else ctypes.pointer(ends.screen.struct())
    inputs, held = None, None
    if ends.per_layer is not None:
        ends.per_layer.check(hidden, vocabulary)
        inputs, held = PerLayerInputsStruct.of(ends.per_layer)
    struct = _Ends(
        *(packed, None if table is None else table.data_ptr(), kind, vocabulary),
        *(ctypes.addressof(ends.head.struct), norm.data_ptr()),
        *(ends.eps, ends.embedding_factor, ends.head_factor),
        *(screen, trims),
        *(None if each is None else each.data_ptr() for each in (positions, first_norm)),
        None if inputs is None else ctypes.addressof(inputs),
    )
    return struct, (ends, norm, table, positions, first_norm, inputs, held)


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
