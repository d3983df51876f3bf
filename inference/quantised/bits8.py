"""Weights in 8 bits, whole numbers or FP8, as files have them or rounded at the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference.quantised.bits import slices

BLOCK = 128  # inputs, by which a device's kernels read
LEAST_RUN = 8  # inputs that share a scale, if not all of a row do
_LARGEST = 127  # of int8, as far down as up
_AT_ONCE = 1024 * 1024  # numbers


@dataclass(frozen=True, slots=True, eq=False)
class Bits8:
    """A weight (n, k): scale * number, by groups of neighbouring inputs of each output."""

    codes: Tensor  # (n, k) int8, float8_e4m3fn or float8_e5m2
    group: int  # inputs that share a scale, the last of them maybe fewer
    scales: Tensor  # (n, groups) float32

    @property
    def inputs(self) -> int:
        """Return k."""
        return self.codes.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, k)."""
        return len(self.codes), self.inputs

    def expand(self) -> Tensor:
        """Return the weight (n, k) in float32."""
        each = torch.arange(self.inputs, device=self.codes.device) // self.group
        return self.codes.float().mul_(self.scales if self.scales.shape[1] == 1 else self.scales[:, each])

    def to(self, device: torch.device) -> Bits8:
        """Return the weight there."""
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))

    def split(self, rows: int | Sequence[int]) -> Iterator[Bits8]:
        """Yield the weight in pieces of so many outputs each."""
        for some in slices(len(self.codes), rows):
            yield replace(self, codes=self.codes[some], scales=self.scales[some])

    def pick(self, rows: Tensor) -> Bits8:
        """Return the weight of these outputs, in their order."""
        codes = self.codes.view(torch.uint8)[rows].view(self.codes.dtype)
        return replace(self, codes=codes, scales=self.scales[rows])


def bytes_in_8_bits(outputs: int, inputs: int, group: int) -> int:
    """Return what such a weight takes, in whole blocks."""
    return outputs * (-(-inputs // BLOCK) * BLOCK + -(-inputs // group) * 4)


def round_rows(weight: Tensor) -> Bits8:
    """Return a weight (n, k) rounded to the nearest of 255 whole numbers, a scale for each row."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight), 1)
    step = max(_AT_ONCE // weight.shape[1], 1)
    for rows, found, scale in zip(weight.split(step), codes.split(step), scales.split(step), strict=True):
        wide = rows.float()
        scale.copy_(wide.abs().amax(1, keepdim=True) / _LARGEST)
        found.copy_((wide / scale.clamp(min=torch.finfo(torch.float32).tiny)).round_())
    return Bits8(codes, weight.shape[1], scales)


def join(parts: Sequence[Bits8]) -> Bits8 | None:
    """Return several weights' outputs as one weight's; None if they are unlike."""
    first = parts[0]
    alike = {(each.inputs, min(each.group, each.inputs), each.codes.dtype) for each in parts}
    if len(alike) > 1:
        return None
    codes = torch.cat([each.codes.view(torch.uint8) for each in parts]).view(first.codes.dtype)
    return replace(first, codes=codes, scales=torch.cat([each.scales for each in parts]))
