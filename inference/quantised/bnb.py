"""bitsandbytes: int8 with a scale for each output, or 4 bits by a table, with one for some numbers in a row.

int8        weight[o, i] = q[o, i] * SCB[o] / 127
nf4, fp4    weight[n] = table[q[n]] * absmax[n // block], counted over the whole weight, the upper half of a
            byte first; absmax may itself be a byte by a table, times a scale, plus an offset
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inference.quantised.bits4 import Bits4, packed_bytes
from inference.quantised.bits8 import Bits8, bytes_in_8_bits
from inference.quantised.expansion import BLOCK, Expansion, Found, Parts, Table
from inference.quantised.method import Method

_STATE = ".quant_state.bitsandbytes__"
_STATE_BYTES = 4096
_LARGEST = 127  # of int8
_LEVELS, _NESTED_LEVELS = 16, 256


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of bitsandbytes holds; raise ModelUnavailable."""
    found = Found()
    for name, prefix in table.ending(".SCB"):
        weight = f"{prefix}.weight"
        shape = table.get(weight, ("I8",), (None, None)).shape
        table.get(name, ("F32",), shape[:1])
        found.weights[weight] = Expansion(
            *(shape, {"weight": weight, "scale": name}, _expand_int8),
            codes=_bits8,
            codes_bytes=bytes_in_8_bits(shape[0], shape[1], shape[1]),
            bits=8,
        )
        found.notes.add("8 bits by rows")
    for name in table.tensors:
        if _STATE in name:
            weight, _, kind = name.partition(_STATE)
            found.weights[weight] = _in_4_bits(table, name, weight, kind)
            found.notes.add(kind)
    found.idle.update(name for name in table.tensors if name.endswith(".weight_format"))
    return found


def _in_4_bits(table: Table, name: str, weight: str, kind: str) -> Expansion:
    state = _state(table, name)
    shape, block = tuple(state["shape"]), state["blocksize"]
    count = math.prod(shape)
    stored = table.get(weight, ("U8", "I8", "F16", "BF16", "F32"))  # bytes, whatever they are said to be
    if stored.stop - stored.start != -(-count // 2):
        raise table.refusal(f"have {stored.stop - stored.start} bytes in `{weight}` for {count} numbers")
    blocks = -(-count // block)
    parts = {"octets": weight, "absmax": f"{weight}.absmax", "table": f"{weight}.quant_map", "state": name}
    table.get(parts["table"], ("F32",), (_LEVELS,))
    nested = state.get("nested_blocksize")
    if nested is None:
        table.get(parts["absmax"], ("F32",), (blocks,))
    else:
        table.get(parts["absmax"], ("U8",), (blocks,))
        parts |= {"scale": f"{weight}.nested_absmax", "levels": f"{weight}.nested_quant_map"}
        table.get(parts["scale"], ("F32",), (-(-blocks // nested),))
        table.get(parts["levels"], ("F32",), (_NESTED_LEVELS,))
    offset = float(state.get("nested_offset") or 0.0)
    expand = partial(_expand_4_bits, block=block, nested=nested, offset=offset)
    of_rows = shape[1] % block == 0 and shape[1] % 2 == 0
    kept = packed_bytes(shape[0], shape[1], block, zeros=False) if of_rows else 0
    codes = partial(_bits4, shape=shape, block=block, nested=nested, offset=offset) if kept else None
    return Expansion(shape, parts, expand, codes, kept, kind=kind)


def _state(table: Table, name: str) -> dict[str, Any]:
    """Return what the files say of a weight besides its tensors."""
    if table.get(name, ("U8",), (None,)).count > _STATE_BYTES:
        raise table.refusal(f"have more than {_STATE_BYTES} bytes in `{name}`")
    try:
        found = json.loads(bytes(table.content(name).tolist()))
        sizes = [found["blocksize"], *found["shape"], found.get("nested_blocksize") or 1]
        fine = all(type(each) is int and 0 < each < 2**40 for each in sizes) and len(found["shape"]) == 2
        float(found.get("nested_offset") or 0.0)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        fine = False
    if not fine:
        raise table.refusal(f"have no `shape` and `blocksize` in `{name}`")
    state: dict[str, Any] = found
    return state


def _expand_int8(parts: Parts, weight: Tensor) -> None:
    for rows, numbers, scale in zip(
        weight.split(_rows(weight)),
        parts["weight"].split(_rows(weight)),
        parts["scale"].split(_rows(weight)),
        strict=True,
    ):
        rows.copy_(numbers.float().mul_(scale[:, None] / _LARGEST))


def _rows(weight: Tensor) -> int:
    return max(BLOCK // weight.shape[1], 1)


def _expand_4_bits(parts: Parts, weight: Tensor, *, block: int, nested: int | None, offset: float) -> None:
    scale = _scales(parts, nested, offset)
    octets, flat = parts["octets"].view(torch.uint8).flatten(), weight.view(-1)
    step = max(BLOCK // (2 * block), 1) * 2 * block
    for start in range(0, len(flat), step):
        own = octets[start // 2 : (start + step + 1) // 2]
        numbers = parts["table"][torch.stack((own >> 4, own & 15), -1).flatten().int()]
        target = flat[start : start + step]
        which = torch.arange(start, start + len(target)) // block
        target.copy_(numbers[: len(target)] * scale[which])


def _scales(parts: Parts, nested: int | None, offset: float) -> Tensor:
    """Return what each block is multiplied by."""
    scale = parts["absmax"]
    if nested is None:
        return scale
    each = torch.arange(len(scale)) // nested
    return parts["levels"][scale.int()] * parts["scale"][each] + offset


def _bits8(parts: Parts) -> Bits8:
    weight = parts["weight"].contiguous()
    return Bits8(weight, weight.shape[1], parts["scale"][:, None] / _LARGEST)


def _bits4(parts: Parts, *, shape: tuple[int, int], block: int, nested: int | None, offset: float) -> Bits4:
    rows, columns = shape
    octets = parts["octets"].contiguous().view(torch.uint8).view(rows, -1)
    scales = _scales(parts, nested, offset).float().view(rows, -1)
    return Bits4(octets >> 4 | octets << 4, columns, block, scales, parts["table"].float())
