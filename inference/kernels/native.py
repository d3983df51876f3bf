"""The C extension of the CPU path: its threads, and linears over packed weights.

Every result depends on its own row only: the same bits for one row or many, whatever the number of
threads. Sources and the rules they keep are in `inference/kernels/native/`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.arena import Arena
from inference.kernels.bits4 import panels, read_bits4
from inference.kernels.bits8 import beside_codes, numbers_of, read_bits8
from inference.kernels.coding import survey
from inference.kernels.kinds import DTYPES, IN_FEW_BITS
from inference.kernels.kinds import STEPS as STEPS
from inference.kernels.kinds import WeightKind as WeightKind
from inference.kernels.quantizing import quantize_rows, sums_of_rows
from inference.kernels.structs import LibraryStruct, LinearStruct
from inference.quantised.bits4 import MOST_IN_GROUP, Bits4
from inference.quantised.bits8 import Bits8
from inference.quantised.codes import Codes

PANEL = 32  # outputs that are packed side by side
INTERFACE = 29  # as in native.h
_ISAS = ("baseline", "avx2", "avx512", "amx", "neon")  # enum Isa
_LANES = {"baseline": 4, "avx2": 8, "avx512": 16, "amx": 16, "neon": 4}  # of 32 bits, as in vector.h
MOST_INT8_INPUTS = 1 << 16  # of one output: sums of 255 * 128, or of 255 * 255 for two, fit int32
_ROWS_AT_ONCE = 4096  # of a weight that is converted, to bound memory

log = logging.getLogger(__name__)


_FEW = 64  # outputs: those of gates and of routers, not of heads
_AT_ONCE = 32  # numbers that torch computes by the same instructions; its pairs need even strides


class Library:
    """The opened extension and its threads, which sleep until there is work and end with this object."""

    def __init__(self, functions: ctypes.CDLL, handle: int) -> None:
        self.functions = functions
        self.handle = ctypes.c_void_p(handle)
        struct = LibraryStruct.from_address(handle)
        self.has_amx: bool = bool(struct.amx)
        self.isa: str = "amx" if self.has_amx else "neon" if struct.neon else _ISAS[struct.isa]
        self.threads: int = struct.threads
        self.has_vnni: bool = bool(struct.vnni)
        self.has_bf16: bool = bool(struct.bf16)
        self.has_dot: bool = bool(struct.dot)
        self.screens: bool = self.has_vnni or self.isa == "avx2"  # whose inputs screen.inc.h can read
        self.compresses: bool = self.isa != "baseline"  # which has no instruction that decodes
        self.arena = Arena()
        # At the process's end nothing is closed: a thread that nobody waited for may still compute
        weakref.finalize(self, functions.parley_close, self.handle).atexit = False

    def __repr__(self) -> str:
        extras = [name for name in ("vnni", "bf16", "dot") if getattr(self, f"has_{name}")]
        return f"<Library {'+'.join([self.isa, *extras])}, {self.threads} threads>"


def open_library(threads: int | None = None, isa: str = "auto") -> Library | None:
    """Open the extension with `threads` threads, the caller's included; if it can't be, log why, return None.

    No `threads`: as many as the process may use cores. Raises ValueError for an `isa` that isn't known.
    """
    if isa not in ("auto", *_ISAS):
        raise ValueError(f"isa must be auto or one of {', '.join(_ISAS)}, not {isa!r}")
    if (path := library_path()) is None:
        log.warning("native kernels are off: the extension wasn't built, which takes GCC at install")
        return None
    try:
        functions = _declare(ctypes.CDLL(str(path)))
        if functions.parley_interface() != INTERFACE:
            raise OSError("it was built from other sources")
    except (OSError, AttributeError) as error:
        log.warning("native kernels are off: %s can't be used, install again: %s", path.name, error)
        return None
    wanted = -1 if isa == "auto" else _ISAS.index(isa)
    if (handle := functions.parley_open(threads or len(os.sched_getaffinity(0)), wanted)) is None:
        log.warning("native kernels are off: this CPU has no %s", isa)
        return None
    return Library(functions, handle)


def address(array: NDArray[Any]) -> int:
    """Return where an array's numbers begin, which `ctypes` would take several times as long to say."""
    at: int = array.__array_interface__["data"][0]
    return at


def library_path() -> Path | None:
    """Return where the extension was built to, or None if it wasn't."""
    places = (Path(__file__).parent / f"_cpu{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions their types. Raises AttributeError if one is missing: it was built before this."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[type | None, tuple[type, ...]]] = {
        "parley_interface": (ctypes.c_int32, ()),
        "parley_open": (pointer, (ctypes.c_int32, ctypes.c_int32)),
        "parley_close": (None, (pointer,)),
        "parley_packed_bytes": (integer, (pointer,)),
        "parley_survey": (None, (pointer, pointer, pointer, pointer, pointer)),
        "parley_pack": (None, (pointer, pointer, pointer, pointer)),
        "parley_gather": (None, (pointer, pointer, pointer, integer, pointer)),
        "parley_linear_scratch": (integer, (pointer, pointer, integer)),
        "parley_linear": (None, (pointer, pointer, pointer, integer, integer, pointer, integer, pointer)),
        "parley_row_scratch": (integer, (integer, integer)),
        "parley_row_statistics": (None, (pointer, *(pointer, integer, integer, integer), *4 * (pointer,))),
        "parley_convolve": (None, (pointer, pointer)),
        "parley_scan": (None, (pointer, pointer)),
        "parley_recur": (None, (pointer, pointer)),
        "parley_read": (None, (pointer, pointer, integer)),
        "parley_peak": (integer, (pointer, ctypes.c_int32, integer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


class PackedLinear:
    """y = x W^T + bias with W (n, k) packed for the kernels; made by `pack`."""

    def __init__(self, library: Library, struct: LinearStruct, tensors: dict[str, Tensor]) -> None:
        self.library = library
        self.struct = struct  # what C code takes; valid as long as this object is
        self._address = ctypes.addressof(struct)
        self._tensors = tensors  # what it points to
        self.n: int = struct.n
        self.k: int = struct.k
        self.kind = list(WeightKind)[struct.kind]
        self.rounds = bool(struct.round_inputs) or self.kind in STEPS  # what it reads
        self._prepares = library.functions.parley_linear_scratch(library.handle, self._address, 1) > 0

    @classmethod
    def pack(
        cls,
        library: Library,
        weight: Tensor,
        bias: Tensor | None,
        kind: WeightKind,
        *,
        round_inputs: bool = False,
        compress: bool = False,
        arena: Arena | None = None,
    ) -> PackedLinear:
        """Pack a weight (n, k) of float32, bfloat16 or float16, rounded to `kind` where that is narrower.

        `round_inputs` has effect with bfloat16 weights where the CPU multiplies bfloat16; so has `compress`,
        which keeps them in 12 bits, where that pays. `arena`: where its memory comes from, if not from the
        library's own. Raises ValueError for int8 weights of more than 65,536 inputs, whose sums could
        overflow, for int6 where the CPU has no VPDPBUSD, and for few bits.
        """
        if kind in STEPS:
            return cls.of_integers(library, *quantize_rows(weight.detach(), STEPS[kind]), kind, bias, arena)
        if kind in IN_FEW_BITS:
            raise ValueError(
                f"weights in {kind} are packed by `of_codes`: how they are rounded isn't known here"
            )
        n, k = weight.shape
        rows = weight.detach().to(DTYPES[kind]).contiguous()
        tensors: dict[str, Tensor] = {}
        rounds = round_inputs and rows.dtype == torch.bfloat16 and library.has_bf16
        struct = LinearStruct(kind=list(WeightKind).index(kind), round_inputs=rounds, n=n, k=k)
        if kind is WeightKind.CODED or (compress and kind is WeightKind.BFLOAT16 and library.compresses):
            coding = survey(library.functions, library.handle, struct, rows)
            if kind is WeightKind.CODED or coding.pays:
                struct.kind = list(WeightKind).index(WeightKind.CODED)
                struct.lanes = _LANES[library.isa]
                tensors |= coding.tensors()
        return cls._placed(library, struct, rows, tensors, bias, arena)

    @classmethod
    def of_integers(
        cls,
        library: Library,
        rows: Tensor,
        scales: Tensor,
        kind: WeightKind,
        bias: Tensor | None = None,
        arena: Arena | None = None,
    ) -> PackedLinear:
        """Pack rows (n, k) in int8, multiples of four for int6, with their scales (n); raise as `pack`."""
        assert rows.dtype == torch.int8, "they are packed as they are"
        n, k = rows.shape
        if k > MOST_INT8_INPUTS:
            raise ValueError(f"{kind} weights may have {MOST_INT8_INPUTS} inputs at most, not {k}")
        if kind is WeightKind.INT6 and not library.has_vnni:
            raise ValueError("int6 weights need a CPU with AVX-512 VNNI")
        struct = LinearStruct(kind=list(WeightKind).index(kind), n=n, k=k)
        sums = sums_of_rows(rows, paired=library.isa == "avx2")
        beside = {"scales": padded(scales), "sums": padded(sums)}
        return cls._placed(library, struct, rows.contiguous(), beside, bias, arena)

    @classmethod
    def of_codes(
        cls, library: Library, weight: Codes, bias: Tensor | None = None, arena: Arena | None = None
    ) -> PackedLinear:
        """Pack a weight of 4 or 8 bits whose groups are as the kernels take them (`packable`)."""
        assert weight.group in range(8, MOST_IN_GROUP + 1, 8), "its groups are those of files"
        kind = WeightKind.BITS4 if isinstance(weight, Bits4) else WeightKind.BITS8
        n, k = weight.shape
        struct = LinearStruct(kind=list(WeightKind).index(kind), n=n, k=k, group=weight.group)
        if isinstance(weight, Bits8):
            struct.numbers = numbers_of(weight)
            codes = weight.codes.contiguous()
            return cls._placed(library, struct, codes, beside_codes(weight), bias, arena)
        struct.is_whole = weight.is_whole
        assert weight.zeros is None or torch.equal(weight.levels, torch.arange(16.0)), "zeros are of codes"
        tensors = panels(weight)
        words = tensors.pop("packed")
        packed = cls._placed(library, struct, None, tensors, bias, arena)
        packed._tensors["packed"].copy_(words.view(torch.uint8).flatten())
        return packed

    @classmethod
    def _placed(
        cls,
        library: Library,
        struct: LinearStruct,
        rows: Tensor | None,
        tensors: dict[str, Tensor],
        bias: Tensor | None,
        arena: Arena | None,
    ) -> PackedLinear:
        """Pack rows as they are, if any; `tensors`: what the struct points to beside them, by its names."""
        size = library.functions.parley_packed_bytes(ctypes.byref(struct))
        tensors["packed"] = (arena or library.arena).take(size)
        if bias is not None:
            tensors["bias"] = padded(bias.detach().float())
        for name, tensor in tensors.items():
            setattr(struct, name, tensor.data_ptr())
        if rows is not None:
            library.functions.parley_pack(
                library.handle, ctypes.byref(struct), rows.data_ptr(), tensors["packed"].data_ptr()
            )
        return cls(library, struct, tensors)

    @property
    def nbytes(self) -> int:
        """Return the memory that it holds."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def bias(self) -> Tensor | None:
        """Return the bias (n) in float32."""
        bias = self._tensors.get("bias")
        return None if bias is None else bias[: self.n]

    def __call__(self, x: Tensor) -> Tensor:
        """Return (..., n) of x (..., k), float32."""
        flat = x.reshape(-1, self.k)
        if flat.dtype != torch.float32:
            raise TypeError(f"inputs must be float32, not {flat.dtype}")
        if flat.stride(1) != 1:
            flat = flat.contiguous()
        rows = flat.shape[0]
        # Torch gives a tensor's last numbers other bits than those in its middle, unless rows lie apart
        stride = self.n // 2 * 2 + 2 if self.n < _FEW and self.n % _AT_ONCE else self.n
        y = torch.empty((rows, stride), dtype=torch.float32)[:, : self.n]
        functions, handle = self.library.functions, self.library.handle
        scratch = None
        if self._prepares:
            scratch = aligned(functions.parley_linear_scratch(handle, self._address, rows))
        functions.parley_linear(
            handle,
            self._address,
            *(flat.data_ptr(), flat.stride(0), rows),
            *(y.data_ptr(), stride),
            None if scratch is None else scratch.data_ptr(),
        )
        return y.view(*x.shape[:-1], self.n)

    def rows(self, ids: Tensor) -> Tensor:
        """Return W[ids], (..., k), in the weight's own dtype; integers and few bits as float32, scaled.

        Raises IndexError for an id that is no row.
        """
        flat = ids.reshape(-1).to(torch.int64).contiguous()
        if flat.numel() and not (0 <= int(flat.min()) and int(flat.max()) < self.n):
            raise IndexError(f"ids must be from 0 to {self.n - 1}")
        if self.kind in IN_FEW_BITS:
            return self._codes(flat).expand().view(*ids.shape, self.k)
        rows = self._gather(flat)
        if self.kind in STEPS:
            rows = rows.float() * self._tensors["scales"][flat, None]
        return rows.view(*ids.shape, self.k)

    def codes(self) -> Codes | None:
        """Return the weight in few bits, if it is kept so."""
        return self._codes(torch.arange(self.n)) if self.kind in IN_FEW_BITS else None

    def _codes(self, ids: Tensor) -> Codes:
        struct = self.struct
        if self.kind is WeightKind.BITS4:
            return read_bits4(self._tensors, self.k, struct.group, ids)
        return read_bits8(self._tensors, self._gather(ids), struct.group, struct.numbers, ids)

    def _gather(self, ids: Tensor) -> Tensor:
        """Return rows (ids, k) as they were packed."""
        rows = torch.empty((ids.numel(), self.k), dtype=DTYPES[self.kind])
        self.library.functions.parley_gather(
            self.library.handle, self._address, ids.data_ptr(), ids.numel(), rows.data_ptr()
        )
        return rows

    def unpack(self) -> Tensor:
        """Return W (n, k) as `rows` does."""
        return self.rows(torch.arange(self.n))


def narrowest(weight: Tensor) -> WeightKind:
    """Return the narrowest kind that holds every value of the weight exactly; never int8."""
    if weight.dtype == torch.bfloat16:
        return WeightKind.BFLOAT16
    for kind in (WeightKind.BFLOAT16, WeightKind.FLOAT16):
        parts = weight.detach().split(_ROWS_AT_ONCE)
        if all(torch.equal(part.to(DTYPES[kind]).to(part.dtype), part) for part in parts):
            return kind
    return WeightKind.FLOAT32


def padded(values: Tensor) -> Tensor:
    """Return (n) with zeros up to a whole panel."""
    whole = torch.zeros(-(-values.numel() // PANEL) * PANEL, dtype=values.dtype)
    whole[: values.numel()] = values
    return whole


def aligned(size: int) -> Tensor:
    """Return memory that begins at a cache line, as all of torch's does."""
    return torch.empty(size, dtype=torch.uint8)
