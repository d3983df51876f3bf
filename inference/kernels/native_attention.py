"""Paged attention on the CPU in C: the cache of one layer, and what a step asks of it.

Each token's result depends on its own sequence alone: it is the same bits in any batch, however a
prompt is cut into pieces, on any pages, and with any number of threads (see attention.inc.h).
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.arena import HUGE_PAGE, LARGE, LINE, map_zeros
from inference.kernels.native import Library, address
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import PAGE

if TYPE_CHECKING:
    from inference.models.paged import LayerShape

_KINDS = {torch.float32: 0, torch.bfloat16: 1}  # as `Kind` of native.h has them


class StepStruct(ctypes.Structure):
    """`Step` of attention.h."""

    _fields_ = (
        ("pieces", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("limits", ctypes.c_void_p),
    )


class CacheStruct(ctypes.Structure):
    """`Cache` of attention.h."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("kv_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("latent", ctypes.c_int64),
        ("rounded", ctypes.c_int64),
    )


class AttentionStruct(ctypes.Structure):
    """`Attention` of attention.h."""

    _fields_ = (
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
        ("slopes", ctypes.c_void_p),
    )


class _Shaping(ctypes.Structure):
    _fields_ = (
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("by_position", ctypes.c_int64),
        ("rotary_dim", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("query_norm_size", ctypes.c_int64),
        ("key_norm_size", ctypes.c_int64),
        ("centred", ctypes.c_int64),
        ("late", ctypes.c_int64),
        ("query_scales", ctypes.c_void_p),
        ("eps", ctypes.c_float),
    )


class _Heads(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("query", _Heads),
        ("key", _Heads),
        ("value", _Heads),
        ("out", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("cache", CacheStruct),
        ("how", AttentionStruct),
        ("shaping", _Shaping),
        ("step", ctypes.POINTER(StepStruct)),
        ("plan", ctypes.c_void_p),
    )


class NativeStep:
    """Which positions of which sequences a step computes, and on which pages they lie.

    Piece i is the positions [starts[i], stops[i]) of the sequence in slot slots[i]; the tokens of the
    pieces are rows, one piece after the other. `table` (slots, pages) holds each sequence's pages in
    order; it isn't copied, and must keep its place and its values until the step has run.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],  # (pieces,)
        stops: NDArray[np.int64],  # (pieces,)
        slots: NDArray[np.int64],  # (pieces,)
        table: NDArray[np.int32],  # (slots, pages)
        limits: NDArray[np.int64] | None = None,  # (tokens,)
    ) -> None:
        """`limits`: the position from which on a token sees nothing, rising in a piece and within it.

        None: of each token the one behind its own.
        """
        starts, stops, slots = (np.ascontiguousarray(each, dtype=np.int64) for each in (starts, stops, slots))
        assert len(starts) == len(stops) == len(slots) > 0, "three numbers for each piece"
        assert table.dtype == np.int32, "C reads the table"
        assert table.strides[1] == table.itemsize, "pages of a sequence follow each other"
        # Lists: of the few pieces of a step they are looked through faster than arrays
        begins, ends, rows = starts.tolist(), stops.tolist(), slots.tolist()
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        assert min(sizes) > 0, "a piece has tokens"
        assert 0 <= min(rows) <= max(rows) < table.shape[0], "a piece has a row of the table"
        assert 0 <= min(begins), "a sequence begins at 0"
        self.last = max(ends) - 1  # position
        self._reach = table.shape[1] * PAGE
        assert self.last < self._reach, "a piece ends within its pages"
        self.tokens = sum(sizes)
        self.slots = slots
        if limits is not None:
            _check_limits(limits, sizes, ends)
        self._held = (starts, stops, slots, table, limits)  # what the struct points to
        self.struct = StepStruct(
            len(starts),
            self.tokens,
            *(address(starts), address(stops), address(slots), address(table)),
            table.strides[0] // 4,
            None if limits is None else address(limits),
        )

    def move(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Be a later step of the same sequences, of a token each: `stops` are one more than `starts`."""
        for each in (starts, stops):
            assert each.dtype == np.int64, "C reads int64"
            assert each.flags.c_contiguous, "C reads one after the other"
        begins, ends = starts.tolist(), stops.tolist()
        assert len(begins) == self.tokens == len(self.slots), "a token of each"
        assert [begin + 1 for begin in begins] == ends, "a token of each"
        assert 0 <= min(begins), "a sequence begins at 0"
        assert max(begins) < self._reach, "a piece ends within its pages"
        self.last = max(begins)
        self._held = (starts, stops, *self._held[2:])
        self.struct.starts, self.struct.stops = address(starts), address(stops)


def _check_limits(limits: NDArray[np.int64], sizes: list[int], ends: list[int]) -> None:
    """Check that each piece's tokens see what is there when they attend, and no less than those before."""
    assert limits.dtype == np.int64, "C reads int64"
    assert limits.flags.c_contiguous, "C reads one after the other"
    assert len(limits) == sum(sizes), "a limit for each token"
    for end, part in zip(ends, np.split(limits, np.cumsum(sizes)[:-1]), strict=True):
        assert (part >= np.arange(end - len(part) + 1, end + 1)).all(), "a token sees itself"
        assert (part <= end).all(), "what is seen is written"
        assert (np.diff(part) >= 0).all(), "limits rise"


class NativeCacheLayer:
    """Keys and values of one layer in pages of PAGE tokens; what nobody wrote to takes no memory.

    With the dtype bfloat16, keys (after rotation) and values are rounded to nearest even as they are
    written. What is computed with them is float32 all the same, unless `rounded`: where the CPU multiplies
    bfloat16, queries and the weights of values are rounded, too, as torch does with a model of that dtype.
    """

    def __init__(
        self,
        library: Library,
        shape: LayerShape,
        blocks: int,
        dtype: torch.dtype = torch.float32,
        share: float = 0.0,
        *,
        rounded: bool = False,
    ) -> None:
        """`share` is the part of a model's layers that come before this one, in [0, 1)."""
        assert dtype in _KINDS, "C reads float32 and bfloat16"
        assert not shape.latent or shape.kv_heads == 1, "all heads attend to one key"
        self.shape = shape
        self.rounded = rounded and dtype == torch.bfloat16
        # All layers grow block by block: begun at the same place of a huge page, they would all need their
        # next one in the same step
        keys: tuple[int, ...] = (shape.key_dim, PAGE)
        values: tuple[int, ...] = (PAGE, shape.value_dim)
        if dtype == torch.bfloat16:  # pairs: two numbers of a key, or of two values, are a word
            keys, values = (-(-shape.key_dim // 2), PAGE, 2), (PAGE // 2, shape.value_dim, 2)
        self.keys = _zeros((blocks, shape.kv_heads, *keys), dtype, share / 2)
        held = (0,) if shape.latent else (blocks, shape.kv_heads, *values)
        self.values = _zeros(held, dtype, (1 + share) / 2)
        self._library = library
        self._functions = _declare(library.functions)
        self._plan = self._functions.parley_attention_plan_open()
        if not self._plan:
            raise MemoryError("No memory for a layer's attention")
        weakref.finalize(self, self._functions.parley_attention_plan_close, self._plan).atexit = False

    @property
    def struct(self) -> CacheStruct:
        """Return what C knows of it; valid as long as this object lives."""
        shape = self.shape
        return CacheStruct(
            self.keys.data_ptr(),
            self.values.data_ptr(),
            shape.kv_heads,
            shape.key_dim,
            shape.value_dim,
            _KINDS[self.keys.dtype],
            shape.latent,
            self.rounded,
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, step: NativeStep, how: Attention) -> Tensor:
        """Write the step's keys and values, then attend.

        Shapes: query (tokens, heads, key_dim), key (tokens, kv_heads, key_dim), value (tokens,
        kv_heads, value_dim), all float32; result (tokens, heads, value_dim).
        """
        heads = query.shape[1]
        assert query.shape == (step.tokens, heads, self.shape.key_dim), "queries of the step's tokens"
        assert key.shape == (step.tokens, self.shape.kv_heads, self.shape.key_dim), "keys as in the cache"
        assert value.shape == (step.tokens, self.shape.kv_heads, self.shape.value_dim), (
            "values as in the cache"
        )
        assert how.latent == self.shape.latent, "values lie where they were seen to"
        assert heads % self.shape.kv_heads == 0, "each key head serves as many query heads"
        out = torch.empty(step.tokens, heads, self.shape.value_dim)
        held = [_with_adjacent_numbers(each) for each in (query, key, value)]
        of_heads = [None if each is None else each.float().contiguous() for each in (how.sinks, how.slopes)]
        call = _Call(
            *(_Heads(each.data_ptr(), each.stride(0), each.stride(1)) for each in held),
            out.data_ptr(),
            heads,
            self.struct,
            attention_struct(how, *of_heads),
            _Shaping(),
            ctypes.pointer(step.struct),
            self._plan,
        )
        if self._functions.parley_attend(self._library.handle, ctypes.byref(call)):
            raise MemoryError(f"No memory for the attention of {step.tokens} tokens")
        return out


def cache_layers(
    library: Library,
    shapes: Sequence[LayerShape],
    blocks: int,
    dtype: torch.dtype,
    *,
    rounded: bool = False,
) -> list[NativeCacheLayer]:
    """Return the cache of a model's layers."""
    return [
        NativeCacheLayer(library, shape, blocks, dtype, index / len(shapes), rounded=rounded)
        for index, shape in enumerate(shapes)
    ]


def arrays_of(layers: Sequence[NativeCacheLayer]) -> tuple[Tensor, ...]:
    """Return what holds the cache of all layers, blocks first."""
    held = (array for layer in layers for array in (layer.keys, layer.values))
    return tuple(array for array in held if array.numel())


def attention_struct(
    how: Attention, sinks: Tensor | None = None, slopes: Tensor | None = None
) -> AttentionStruct:
    """Return what C knows of `how`; `sinks` and `slopes` are in float32, and must outlive the struct."""
    held = (None if each is None else each.data_ptr() for each in (sinks, slopes))
    return AttentionStruct(how.scaling, how.softcap or 0.0, how.window or 0, how.chunk or 0, *held)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, phase: float) -> Tensor:
    """Return zeros, if they are many on huge pages: scattered blocks are read faster.

    They begin at this `phase` of a page, in [0, 1).
    """
    size = dtype.itemsize * math.prod(shape)
    first = int(phase * HUGE_PAGE) // LINE * LINE if size >= LARGE else 0
    return map_zeros(first + size)[first:].view(dtype).view(shape)


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    functions.parley_attention_plan_open.restype = ctypes.c_void_p
    functions.parley_attention_plan_open.argtypes = ()
    functions.parley_attention_plan_close.restype = None
    functions.parley_attention_plan_close.argtypes = (ctypes.c_void_p,)
    functions.parley_attend.restype = ctypes.c_int
    functions.parley_attend.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return functions


def _with_adjacent_numbers(heads: Tensor) -> Tensor:
    heads = heads.float()
    return heads if heads.stride(2) == 1 else heads.contiguous()
