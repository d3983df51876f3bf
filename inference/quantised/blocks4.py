"""Weights in 4 bits as a device's kernels read them: a byte has two inputs that are half a block apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.quantised.bits4 import Bits4, pack_codes

BLOCK = 128  # inputs
HALF = BLOCK // 2  # and bytes


@dataclass(frozen=True, slots=True, eq=False)
class Blocks4:
    """A weight (n, k) in 4 bits: scale * (levels[code] + zero), rounded to `dtype`, as if it were expanded.

    Of each 128 inputs a byte has one of the first 64 in its lower half, and the one 64 behind it in the
    upper. So the numbers that are computed together lie side by side, in the weight as in what it multiplies.
    """

    codes: Tensor  # (n, blocks * 64) uint8; beyond k they are 0
    inputs: int  # k
    group: int  # inputs that share a scale
    scales: Tensor  # (n, groups) float32, groups beyond k among them: narrower, they can't be read ahead
    levels: Tensor  # (16) float32
    dtype: torch.dtype  # that it is computed in
    offset: int | None  # levels are 0 to 15 and this; None: they are anything
    zeros: Tensor | None = None  # (n, groups) float32, only where the offset is 0

    @staticmethod
    def of(weight: Bits4, dtype: torch.dtype) -> Blocks4:
        """Return a weight so, where it is."""
        n, k = weight.shape
        codes = torch.stack((weight.codes & 15, weight.codes >> 4), -1).view(n, -1)
        codes = pad(codes, (0, -(-k // BLOCK) * BLOCK - codes.shape[1]))
        codes[:, k:] = 0  # the one beyond an odd k
        first, second = codes.view(n, -1, 2, HALF).unbind(2)
        group = weight.group if weight.group < k else codes.shape[1]  # of a row as a whole
        missing = -(-codes.shape[1] // group) - weight.scales.shape[1]
        first_level = float(weight.levels[0])
        is_whole = weight.is_whole and first_level.is_integer()
        return Blocks4(
            codes=(first | second << 4).view(n, -1),
            inputs=k,
            group=group,
            scales=pad(weight.scales, (0, missing)),
            levels=weight.levels,
            dtype=dtype,
            offset=int(first_level) if is_whole else None,
            zeros=None if weight.zeros is None else pad(weight.zeros, (0, missing)),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, k)."""
        return len(self.codes), self.inputs

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
        return (*self.shape, self.group, self.offset is None, self.zeros is not None)

    def expand(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the weight (n, k) in `dtype`, or in its own."""
        return self.unpack().expand().to(dtype or self.dtype)

    def unpack(self) -> Bits4:
        """Return the weight as it was."""
        n, k = self.shape
        halves = self.codes.view(n, -1, HALF)
        codes = torch.stack((halves & 15, halves >> 4), 2).view(n, -1)[:, :k]
        groups = -(-k // self.group)
        zeros = None if self.zeros is None else self.zeros[:, :groups]
        return Bits4(
            codes=pack_codes(codes),
            inputs=k,
            group=self.group,
            scales=self.scales[:, :groups],
            levels=self.levels,
            zeros=zeros,
        )

    def to(self, device: torch.device | str) -> Blocks4:
        """Return the weight there."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            levels=self.levels.to(device),
            zeros=zeros,
        )

    def split(self, sizes: Sequence[int]) -> list[Blocks4]:
        """Return pieces of so many outputs each."""
        parts = []
        for size, end in zip(sizes, accumulate(sizes), strict=True):
            some = slice(end - size, end)
            zeros = None if self.zeros is None else self.zeros[some]
            parts.append(replace(self, codes=self.codes[some], scales=self.scales[some], zeros=zeros))
        return parts
