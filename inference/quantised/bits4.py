"""Weights in 4 bits, as files that were quantised before have them: codes, and scales of groups of inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.quantised.bits import slices

MOST_IN_GROUP = 128  # as in linear.h
_CODES = 8  # of a word, of which a group has some
_LEVELS = 16
_WHOLE = torch.arange(_LEVELS, dtype=torch.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Bits4:
    """A weight (n, k): scale * (levels[code] + zero), by groups of neighbouring inputs of each output.

    Zeros are there only where levels are 0 to 15, codes themselves.
    """

    codes: Tensor  # (n, k / 2, rounded up) uint8: of two inputs the first in the lower half
    inputs: int  # k
    group: int  # inputs that share a scale, the last of them maybe fewer
    scales: Tensor  # (n, groups) float32
    levels: Tensor  # (16) float32
    zeros: Tensor | None = None  # (n, groups) float32

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, k)."""
        return len(self.codes), self.inputs

    @property
    def is_whole(self) -> bool:
        """Return whether levels are whole numbers, one after the other."""
        return torch.equal((self.levels - self.levels[0]).cpu(), _WHOLE)

    def expand(self) -> Tensor:
        """Return the weight (n, k) in float32.

        It is looked up two numbers at a time, by their byte: a tenth of the time that single ones took.
        """
        pairs = torch.stack((self.levels.repeat(_LEVELS), self.levels.repeat_interleave(_LEVELS)), 1)
        octets = self.codes.reshape(-1).int()
        both = torch.index_select(pairs.view(torch.int64).flatten(), 0, octets).view(torch.float32)
        found = both.view(len(self.codes), -1)[:, : self.inputs]
        if self.inputs % self.group:
            each = torch.arange(self.inputs, device=found.device) // self.group
            zeros = None if self.zeros is None else self.zeros[:, each]
            return found.add_(0 if zeros is None else zeros).mul_(self.scales[:, each])
        groups = found.unflatten(1, (-1, self.group))
        if self.zeros is not None:
            groups.add_(self.zeros[..., None])
        groups.mul_(self.scales[..., None])
        return found

    def to(self, device: torch.device) -> Bits4:
        """Return the weight there."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            levels=self.levels.to(device),
            zeros=zeros,
        )

    def split(self, rows: int | Sequence[int]) -> Iterator[Bits4]:
        """Yield the weight in pieces of so many outputs each."""
        for some in slices(len(self.codes), rows):
            zeros = None if self.zeros is None else self.zeros[some]
            yield replace(self, codes=self.codes[some], scales=self.scales[some], zeros=zeros)

    def pick(self, rows: Tensor) -> Bits4:
        """Return the weight of these outputs, in their order."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], zeros=zeros)

    def packable(self) -> Bits4 | None:
        """Return the same with groups as the kernels take them; None if there are none."""
        size = _group_size(self.inputs, self.group)
        if not size:
            return None
        return replace(self, group=size) if size >= self.inputs else self._regrouped(size)

    def _regrouped(self, size: int) -> Bits4:
        """Return the same with smaller groups, of which several have the same scale."""
        starts = torch.arange(0, self.inputs, size) // self.group
        zeros = None if self.zeros is None else self.zeros[:, starts]
        return replace(self, group=size, scales=self.scales[:, starts], zeros=zeros)


def packed_bytes(outputs: int, inputs: int, group: int, *, zeros: bool) -> int:
    """Return what such a weight takes packed, 0 if kernels don't take groups of so many inputs."""
    size = _group_size(inputs, group)
    if not size:
        return 0
    return outputs * (-(-inputs // 2) + -(-inputs // size) * 4 * (2 if zeros else 1))


def join(parts: Sequence[Bits4 | None]) -> Bits4 | None:
    """Return several weights' outputs as one weight's; None if one isn't there, or they are unlike."""
    found = [each for each in parts if each is not None]
    if len(found) < len(parts):
        return None
    first = found[0]
    if len(found) == 1:
        return first
    unlike = any(each.zeros is not None or not torch.equal(each.levels, first.levels) for each in found)
    if unlike and all(each.is_whole for each in found):
        found = [_with_zeros(each) for each in found]
    alike = all(
        (each.inputs, each.group, each.zeros is None) == (first.inputs, first.group, found[0].zeros is None)
        and torch.equal(each.levels, found[0].levels)
        for each in found
    )
    if not alike:
        return None
    zeros = [each.zeros for each in found if each.zeros is not None]
    return replace(
        found[0],
        codes=torch.cat([each.codes for each in found]),
        scales=torch.cat([each.scales for each in found]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def whole_numbers(codes: Tensor, inputs: int, group: int, scales: Tensor, zeros: Tensor | int) -> Bits4:
    """Return scale * (code - zero), with zero points (n, groups) or one for all, from packed codes."""
    given = torch.full_like(scales, zeros, dtype=torch.float32) if isinstance(zeros, int) else zeros.float()
    common = given.flatten()[0]
    if bool((given == common).all()):
        return Bits4(codes, inputs, group, scales.float(), _WHOLE - common)
    return Bits4(codes, inputs, group, scales.float(), _WHOLE, -given)


def pack_codes(codes: Tensor) -> Tensor:
    """Return codes (n, k), a byte each, with two to a byte."""
    codes = pad(codes, (0, codes.shape[1] % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4


def _group_size(inputs: int, group: int) -> int:
    """Return the inputs of a group as kernels take them, 0 if they can't."""
    if group >= inputs:  # of a row as a whole
        return min(-(-inputs // _CODES) * _CODES, MOST_IN_GROUP)
    size = group if group <= MOST_IN_GROUP else math.gcd(group, MOST_IN_GROUP)
    return 0 if size % _CODES else size


def _with_zeros(weight: Bits4) -> Bits4:
    if weight.zeros is not None:
        return weight
    zeros = torch.full_like(weight.scales, float(weight.levels[0]))
    return replace(weight, levels=_WHOLE.to(weight.levels.device), zeros=zeros)
