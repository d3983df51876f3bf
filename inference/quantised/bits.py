"""Small whole numbers out of the words they are packed in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

WORD = 32  # bits
MOST_IN_GROUP = 128  # as in linear.h
_RUN = 8  # inputs, of which a group has some

FP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Return the first numbers of each row of words, lowest bits first, without gaps: (rows, count), uint8.

    `words`: (rows, at least count * bits / 32), int32.
    """
    if 8 % bits == 0:
        # Flat first: rows of one word, turned, are contiguous to torch, and still can't be viewed as bytes
        octets = words.contiguous().flatten().view(torch.uint8).view(len(words), -1)
        parts = [(octets >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        return torch.stack(parts, -1).flatten(-2)[:, :count]
    wide = pad(words.long() & (2**WORD - 1), (0, 1))
    starts = torch.arange(count, device=words.device) * bits
    first, shift = starts // WORD, starts % WORD
    low, high = wide[:, first] >> shift, wide[:, first + 1] << (WORD - shift)
    return ((low | high) & (2**bits - 1)).to(torch.uint8)


def kernels_group(inputs: int, group: int) -> int:
    """Return how many inputs a group has as a CPU's kernels take them, 0 if they can't."""
    if group >= inputs:  # of a row as a whole
        return min(-(-inputs // _RUN) * _RUN, MOST_IN_GROUP)
    size = group if group <= MOST_IN_GROUP else math.gcd(group, MOST_IN_GROUP)
    return 0 if size % _RUN else size


def regrouped(each: Tensor, inputs: int, group: int, size: int) -> Tensor:
    """Return what groups have, (n, groups), for groups of so many inputs, of which several have the same."""
    return each if size >= inputs else each[:, torch.arange(0, inputs, size) // group]


def slices(count: int, rows: int | Sequence[int]) -> Iterator[slice]:
    """Yield the pieces of so many rows, of so many rows each."""
    sizes = [min(rows, count - start) for start in range(0, count, rows)] if isinstance(rows, int) else rows
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        yield slice(end - size, end)


def words_for(count: int, bits: int) -> int:
    """Return how many words so many numbers take."""
    return -(-count * bits // WORD)


def fp4(octets: Tensor) -> Tensor:
    """Return the numbers of E2M1, two in each byte, the lower half first: (..., 2 * bytes), float32."""
    table = torch.tensor(FP4_LEVELS, device=octets.device)
    pairs = torch.stack((octets & 15, octets >> 4), -1).flatten(-2)
    return table[pairs.int()]


def power_of_two(exponents: Tensor) -> Tensor:
    """Return what bytes of E8M0 stand for, float32; the last of them, 255, is no number."""
    octets = exponents.view(torch.uint8).int()
    found = torch.ldexp(torch.ones_like(octets, dtype=torch.float32), octets - 127)
    return found.masked_fill_(octets == 255, torch.nan)


def scale_groups(
    numbers: Tensor, zeros: Tensor | int, scales: Tensor, size: int, order: Tensor | None
) -> Tensor:
    """Return (numbers - zero) * scale, both of each number's group of inputs, in place.

    `numbers`: (rows, columns), float32; `zeros`, unless it is one for all, and `scales`: (rows, groups).
    `order` says which group each column is of; None: each `size` columns that lie side by side.
    """
    columns = numbers.shape[1]
    if order is None and columns % size == 0:
        numbers, scales = numbers.unflatten(1, (-1, size)), scales.unsqueeze(-1)
        zeros = zeros if isinstance(zeros, int) else zeros.unsqueeze(-1)
        return numbers.sub_(zeros).mul_(scales).flatten(1)
    which = torch.arange(columns) // size if order is None else order
    return numbers.sub_(zeros if isinstance(zeros, int) else zeros[:, which]).mul_(scales[:, which])
