"""Weights in 4 or 8 bits as a device's kernels read them, by blocks of 128 inputs.

In 4 bits a byte has one of a block's first 64 inputs in its lower half, and the one 64 behind it in the
upper. So the numbers that are computed together lie side by side, in the weight as in what it multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.quantised.bits import slices
from inference.quantised.bits4 import Bits4, pack_codes
from inference.quantised.bits8 import BLOCK as BLOCK
from inference.quantised.bits8 import OF_E4M3, Bits8
from inference.quantised.codes import Codes

HALF = BLOCK // 2
_SIGN = 128  # of int8: codes are counted from the least number


class Numbers(IntEnum):
    """What codes stand for."""

    COUNTED = 0  # themselves, and an offset
    LEVELS = 1  # what a table of 16 says
    E4M3 = 2
    E5M2 = 3


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A weight (n, k): scale * (number + zero), rounded to `dtype`, as if it were expanded."""

    codes: Tensor  # (n, blocks * 64) uint8 in 4 bits, else (n, blocks * 128)
    bits: int
    inputs: int  # k
    group: int  # inputs that share a scale
    scales: Tensor  # (n, groups) float32, groups beyond k among them: narrower, they can't be read ahead
    dtype: torch.dtype  # that it is computed in
    numbers: Numbers
    offset: int = 0  # of what is counted
    levels: Tensor | None = None  # (16) float32
    zeros: Tensor | None = None  # (n, groups) float32, only of what is counted from 0

    @staticmethod
    def of(weight: Codes, dtype: torch.dtype) -> Blocks:
        """Return a weight so, where it is."""
        return _of_bits4(weight, dtype) if isinstance(weight, Bits4) else _of_bits8(weight, dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, k)."""
        return len(self.codes), self.inputs

    @property
    def blocks(self) -> int:
        """Return how many blocks a row has."""
        return -(-self.inputs // BLOCK)

    @property
    def device(self) -> torch.device:
        """Return where it is."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Return what it takes."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    @property
    def run(self) -> int:
        """Return how many inputs, one behind the other in half a block, have the same scale for certain."""
        return math.gcd(self.group, HALF)

    @property
    def form(self) -> tuple[int, ...]:
        """Return all that a kernel's time depends on."""
        return (*self.shape, self.bits, self.group, self.numbers, self.zeros is not None)

    def expand(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the weight (n, k) in `dtype`, or in its own."""
        return self.unpack().expand().to(dtype or self.dtype)

    def unpack(self) -> Codes:
        """Return the weight as it was."""
        groups = -(-self.inputs // self.group)
        scales = self.scales[:, :groups]
        if self.bits == 8:
            return self._unpack_8(scales)
        halves = self.codes.view(len(self.codes), -1, HALF)
        codes = torch.stack((halves & 15, halves >> 4), 2).view(len(self.codes), -1)[:, : self.inputs]
        counted = torch.arange(16, dtype=torch.float32, device=self.device) + self.offset
        return Bits4(
            codes=pack_codes(codes),
            inputs=self.inputs,
            group=self.group,
            scales=scales,
            levels=counted if self.levels is None else self.levels,
            zeros=None if self.zeros is None else self.zeros[:, :groups],
        )

    def _unpack_8(self, scales: Tensor) -> Bits8:
        codes = self.codes[:, : self.inputs]
        if self.numbers is Numbers.COUNTED:
            return Bits8((codes ^ _SIGN).view(torch.int8), self.group, scales)
        if self.numbers is Numbers.E5M2:
            return Bits8(codes.view(torch.float8_e5m2), self.group, scales)
        return Bits8(codes.view(torch.float8_e4m3fn), self.group, scales / OF_E4M3)

    def to(self, device: torch.device | str) -> Blocks:
        """Return the weight there."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            levels=None if self.levels is None else self.levels.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
        )

    def split(self, sizes: Sequence[int]) -> list[Blocks]:
        """Return pieces of so many outputs each."""
        parts = []
        for some in slices(len(self.codes), sizes):
            zeros = None if self.zeros is None else self.zeros[some]
            parts.append(replace(self, codes=self.codes[some], scales=self.scales[some], zeros=zeros))
        return parts


def _of_bits4(weight: Bits4, dtype: torch.dtype) -> Blocks:
    n, k = weight.shape
    codes = torch.stack((weight.codes & 15, weight.codes >> 4), -1).view(n, -1)[:, :k]
    first, second = _by_blocks(codes).view(n, -1, 2, HALF).unbind(2)
    first_level = float(weight.levels[0])
    counted = weight.is_whole and first_level.is_integer()
    group, missing = _groups(weight)
    return Blocks(
        codes=(first | second << 4).view(n, -1),
        bits=4,
        inputs=k,
        group=group,
        scales=_by_rows(weight.scales, missing),
        dtype=dtype,
        numbers=Numbers.COUNTED if counted else Numbers.LEVELS,
        offset=int(first_level) if counted else 0,
        levels=None if counted else weight.levels,
        zeros=None if weight.zeros is None else _by_rows(weight.zeros, missing),
    )


def _of_bits8(weight: Bits8, dtype: torch.dtype) -> Blocks:
    octets = weight.codes.contiguous().view(torch.uint8)
    group, missing = _groups(weight)
    numbers = Numbers.COUNTED
    if weight.codes.dtype == torch.float8_e5m2:
        numbers = Numbers.E5M2
    elif weight.codes.dtype == torch.float8_e4m3fn:
        numbers = Numbers.E4M3
    counted = numbers is Numbers.COUNTED
    return Blocks(
        codes=_by_blocks(octets ^ _SIGN if counted else octets).contiguous(),
        bits=8,
        inputs=weight.inputs,
        group=group,
        scales=_by_rows(weight.kernels_scales(), missing),
        dtype=dtype,
        numbers=numbers,
        offset=-_SIGN if counted else 0,
    )


def _by_blocks(codes: Tensor) -> Tensor:
    """Return codes (n, k) with 0 for the inputs that the last block lacks."""
    return pad(codes, (0, -codes.shape[1] % BLOCK))


def _by_rows(numbers: Tensor, missing: int) -> Tensor:
    """Return numbers (n, groups), 0 for those missing, row by row for kernels: GPTQ has them turned."""
    return pad(numbers, (0, missing)).contiguous()


def _groups(weight: Codes) -> tuple[int, int]:
    """Return the inputs of a group, and how many groups the last block lacks."""
    inputs = -(-weight.inputs // BLOCK) * BLOCK
    group = weight.group if weight.group < weight.inputs else inputs  # of a row as a whole
    return group, -(-inputs // group) - weight.scales.shape[1]
