"""Weights of 8 bits a number, or of 4 in floating point, times the scales of their blocks.

    weight[o, i] = q[o, i] * scale[o // block rows, i // block columns]

A scale for all is one block, one for each output a block of one row. FP8 and int8 are stored so by many
tools, under several names; what scales are, numbers or powers of two (E8M0), their dtype says.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from inference.quantised.bits import FP4_LEVELS, fp4, power_of_two
from inference.quantised.bits4 import Bits4, packed_bytes
from inference.quantised.bits8 import LEAST_RUN, Bits8, bytes_in_8_bits
from inference.quantised.expansion import Expansion, Parts, Table, spans

FP8 = ("F8_E4M3", "F8_E5M2")
NUMBERS = ("F32", "F16", "BF16")
EXPONENTS = ("U8", "F8_E8M0")


Block = tuple[int, int]  # rows and columns that share a scale


def scaled(table: Table, name: str, scale: str, block: Block | None) -> Expansion:
    """Return a weight of 8 bits a number, (..., rows, columns); raise ModelUnavailable if scales don't fit.

    `block` is what config.json says of these; None: what can be told of their shape.
    """
    tensor = table.get(name, (*FP8, "I8"))
    shape = tensor.shape
    if len(shape) < 2:
        raise table.refusal(f"have `{name}` with {len(shape)} dimensions")
    _check_scales(table, scale, shape, block)
    parts, expand = {"weight": name, "scale": scale}, partial(_expand, block=block)
    group = _group(shape, table.tensors[scale].shape, block)
    if not group:
        return Expansion(shape, parts, expand)
    codes = partial(_bits8, block=block, group=group)
    nbytes = bytes_in_8_bits(shape[0], shape[1], group)
    return Expansion(shape, parts, expand, codes, nbytes, bits=8, kind=tensor.dtype)


def packed_fp4(
    table: Table, name: str, scale: str, size: int, globally: str | None, divide: bool
) -> Expansion:
    """Return a matrix of E2M1, two numbers a byte, with a scale for `size` of a row, and maybe one for all.

    `divide`: that one is what the others are divided by.
    """
    octets = table.get(name, ("U8",), (None, None))
    shape = (octets.shape[0], 2 * octets.shape[1])
    scales = table.get(scale, (*EXPONENTS, "F8_E4M3"), (shape[0], None))
    if shape[1] != scales.shape[1] * size:
        raise table.refusal(f"have {scales.shape[1]} scales in `{scale}` for {shape[1]} inputs, {size} each")
    parts = {"octets": name, "scale": scale}
    if globally is not None:
        if table.get(globally, ("F32",)).count != 1:
            raise table.refusal(f"have more than one number in `{globally}`")
        parts["all"] = globally
    kept = packed_bytes(*shape, size, zeros=False)
    codes = partial(_bits4, size=size, divide=divide) if kept else None
    return Expansion(shape, parts, partial(_expand_fp4, size=size, divide=divide), codes, kept)


def as_numbers(scale: Tensor) -> Tensor:
    """Return scales in float32, whatever they are stored as."""
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return power_of_two(scale)
    return scale.float()


def _check_scales(table: Table, name: str, shape: tuple[int, ...], block: Block | None) -> None:
    scale = table.get(name, (*NUMBERS, *EXPONENTS))
    if scale.count == 1 or (len(shape) == 2 and scale.shape == shape[:1]):
        return
    fits = len(scale.shape) == len(shape) and scale.shape[:-2] in (shape[:-2], (1,) * len(shape[:-2]))
    sides = zip(shape[-2:], scale.shape[-2:], block or (0, 0), strict=True)
    if not fits or not all(_fits(length, count, side) for length, count, side in sides):
        said = f" in blocks of {block[0]}x{block[1]}" if block else ""
        sizes = ["x".join(map(str, each)) for each in (scale.shape, shape)]
        raise table.refusal(f"have {sizes[0]} scales in `{name}` for {sizes[1]} numbers{said}")


def _fits(length: int, count: int, side: int) -> bool:
    """Return whether so many scales are as many as the numbers along an axis need."""
    if side:
        return count in (1, length, -(-length // side))
    return length % count == 0


def _each(length: int, count: int, side: int) -> Tensor:
    """Return whose scale each of the numbers along an axis has."""
    if count in (1, length):
        side = length // count
    return torch.arange(length) // (side or length // count)


def _expand(parts: Parts, weight: Tensor, *, block: Block | None) -> None:
    numbers = parts["weight"].flatten(0, -3) if weight.dim() > 2 else parts["weight"][None]
    target = weight.flatten(0, -3) if weight.dim() > 2 else weight[None]
    scale = _as_matrices(as_numbers(parts["scale"]))
    rows, columns = target.shape[1:]
    sides = block or (0, 0)
    down, across = _each(rows, scale.shape[1], sides[0]), _each(columns, scale.shape[2], sides[1])
    zero = parts.get("zero")
    for index, matrix in enumerate(numbers):
        own = scale[index if len(scale) > 1 else 0]
        for span in spans(rows, columns):
            found = matrix[span].float()
            if zero is not None:
                found -= zero.float().view(own.shape)[down[span]][:, across]
            target[index, span] = found.mul_(own[down[span]][:, across])


def _as_matrices(scale: Tensor) -> Tensor:
    """Return scales as (matrices or 1, rows of blocks, columns of blocks)."""
    if scale.numel() == 1:
        return scale.view(1, 1, 1)
    if scale.dim() == 1:
        return scale.view(1, -1, 1)
    return scale.reshape(-1, *scale.shape[-2:])


def _group(shape: tuple[int, ...], scales: tuple[int, ...], block: Block | None) -> int:
    """Return how many neighbouring inputs of a matrix share a scale, 0 if kernels don't take so many."""
    if len(shape) > 2:
        return 0
    count = scales[1] if len(scales) == 2 else 1
    group = shape[1] if count == 1 else (block[1] if block else shape[1] // count)
    return group if count == 1 or (count < shape[1] and group % LEAST_RUN == 0) else 0


def _bits8(parts: Parts, *, block: Block | None, group: int) -> Bits8:
    weight, (scale,) = parts["weight"].contiguous(), _as_matrices(as_numbers(parts["scale"]))
    down = _each(len(weight), len(scale), block[0] if block else 0)
    return Bits8(weight, group, scale[down])


def _bits4(parts: Parts, *, size: int, divide: bool) -> Bits4:
    octets = parts["octets"].contiguous()
    scales = _group_scales(parts, slice(None), divide)
    return Bits4(octets, 2 * octets.shape[1], size, scales, torch.tensor(FP4_LEVELS))


def _group_scales(parts: Parts, span: slice, divide: bool) -> Tensor:
    scale = as_numbers(parts["scale"][span])
    if "all" not in parts:
        return scale
    common = parts["all"].float().view(())
    return scale / common if divide else scale * common


def _expand_fp4(parts: Parts, weight: Tensor, *, size: int, divide: bool) -> None:
    rows, columns = weight.shape
    for span in spans(rows, columns):
        scale = _group_scales(parts, span, divide)
        numbers = fp4(parts["octets"][span]).unflatten(-1, (-1, size))
        weight[span] = numbers.mul_(scale[..., None]).flatten(-2)
