"""compressed-tensors: a weight under a name for each of the forms that its tensors may have.

pack-quantized     whole numbers of 1 to 8 bits, 2^(bits - 1) added, packed along the inputs
int-quantized, float-quantized, naive-quantized, mxfp8-quantized      8 bits a number
nvfp4-pack-quantized, mxfp4-pack-quantized                            E2M1, two numbers a byte
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inference.quantised.bits import scale_groups, unpack, words_for
from inference.quantised.bits4 import Bits4, packed_bytes, whole_numbers
from inference.quantised.bits8 import LEAST_RUN, Bits8, bytes_in_8_bits
from inference.quantised.expansion import Expansion, Found, Parts, Table, spans
from inference.quantised.float8 import IDLE
from inference.quantised.method import Method
from inference.quantised.scaled import FP8, NUMBERS, Block, packed_fp4, scaled

_READ = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
)
_MX_GROUP, _NV_GROUP = 32, 16
_OWN_IDLE = (*IDLE, ".input_zero_point", ".output_zero_point", ".input_global_scale", ".weight_shape")


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of compressed-tensors holds; raise ModelUnavailable."""
    groups = _groups(method)
    found = Found()
    for name, prefix in table.ending(".weight_packed"):
        if table.tensors[name].dtype == "U8":
            found.weights[f"{prefix}.weight"] = _fp4(table, name, prefix)
            found.notes.add("FP4")
        else:
            found.weights[f"{prefix}.weight"] = _packed(table, name, prefix, groups, found)
    for name, prefix in table.ending(".weight"):
        dtype = table.tensors[name].dtype
        if dtype in (*FP8, "I8"):
            found.weights[name] = _plain(table, name, prefix, groups)
            found.notes.add("8 bits" if dtype == "I8" else "FP8")
    found.idle.update(name for name in table.tensors if name.endswith(_OWN_IDLE))
    return found


def _groups(method: Method) -> list[dict[str, Any]]:
    """Return what config.json says of the weights of each group of modules."""
    sparse = method.settings.get("sparsity_config") or {}
    if not isinstance(sparse, dict) or sparse.get("format", "dense") != "dense":
        raise method.variant("and its sparse form")
    if method.settings.get("transform_config"):
        raise method.variant("and what its `transform_config` does to inputs")
    given = method.settings.get("config_groups") or {}
    groups = [each for each in given.values() if isinstance(each, dict)] if isinstance(given, dict) else []
    for form in (method.settings.get("format"), *(each.get("format") for each in groups)):
        if form is not None and form not in _READ:
            raise method.variant(f"and its form {str(form)!r}")
    return [weights for each in groups if isinstance(weights := each.get("weights"), dict)]


def _numbers(groups: list[dict[str, Any]], name: str) -> Iterator[int]:
    """Yield what the groups say that some number of a weight is."""
    yield from (each[name] for each in groups if type(each.get(name)) is int and each[name] > 0)


def _packed(table: Table, name: str, prefix: str, groups: list[dict[str, Any]], found: Found) -> Expansion:
    words = table.get(name, ("I32",), (None, None))
    rows, columns = _shape(table, prefix)
    bits = next(
        (each for each in _numbers(groups, "num_bits") if _holds(words.shape, rows, columns, each)), None
    )
    if bits is None:
        raise table.refusal(f"have {words.shape[1]} words in `{name}` for {columns} inputs")
    scale = f"{prefix}.weight_scale"
    scales = table.get(scale, NUMBERS)
    if scales.count != 1 and (len(scales.shape) != 2 or scales.shape[0] != rows):
        raise table.refusal(f"have scales of another shape in `{scale}` than for {rows} outputs")
    count = 1 if scales.count == 1 else scales.shape[1]
    size = (
        columns
        if count == 1
        else next((each for each in _numbers(groups, "group_size") if -(-columns // each) == count), None)
    )
    if size is None:
        raise table.refusal(f"have {count} groups in `{scale}` for {columns} inputs")
    parts = {"words": name, "scale": scale}
    if f"{prefix}.weight_zero_point" in table.tensors:
        zero = parts["zero"] = f"{prefix}.weight_zero_point"
        table.get(zero, ("I32",), (words_for(rows, bits), count))
    if f"{prefix}.weight_g_idx" in table.tensors:
        parts["order"] = f"{prefix}.weight_g_idx"
        table.get(parts["order"], ("I32", "I64"), (columns,))
    found.notes.add(f"{bits} bits in groups of {size}" if count > 1 else f"{bits} bits by rows")
    expand = partial(_expand, bits=bits, size=size, table=table, name=name)
    kept = 0
    if bits == 4:
        kept = packed_bytes(rows, columns, size, zeros="zero" in parts)
    elif bits == 8 and "zero" not in parts and (size == columns or size % LEAST_RUN == 0):
        kept = bytes_in_8_bits(rows, columns, size)
    if kept and "order" in parts:
        order = {"order": table.content(parts["order"]), "scale": table.content(scale)}
        kept = kept if _order(order, table, name, size) is None else 0
    codes = partial(_bits4 if bits == 4 else _bits8, columns=columns, size=size) if kept else None
    return Expansion((rows, columns), parts, expand, codes, kept, bits)


def _shape(table: Table, prefix: str) -> tuple[int, int]:
    name = f"{prefix}.weight_shape"
    table.get(name, ("I64", "I32"), (2,))
    rows, columns = table.content(name).tolist()
    return rows, columns


def _holds(shape: tuple[int, ...], rows: int, columns: int, bits: int) -> bool:
    return bits <= 8 and rows == shape[0] and columns > 0 and words_for(columns, bits) == shape[1]


def _plain(table: Table, name: str, prefix: str, groups: list[dict[str, Any]]) -> Expansion:
    found = scaled(table, name, f"{prefix}.weight_scale", _block(groups))
    zero = f"{prefix}.weight_zero_point"
    if zero not in table.tensors:
        return found
    scale = table.tensors[f"{prefix}.weight_scale"]
    table.get(zero, ("I8", "I32", "F8_E4M3", "F16", "BF16", "F32"))
    if table.tensors[zero].count != scale.count or len(found.shape) != 2:
        raise table.refusal(f"have another number of zero points in `{zero}` than of scales")
    return Expansion(found.shape, {**found.parts, "zero": zero}, found.expand)


def _block(groups: list[dict[str, Any]]) -> Block | None:
    """Return the blocks or groups that config.json says, which must fit in what the scales' shape says."""
    for each in groups:
        block = each.get("block_structure")
        if isinstance(block, str):  # "128x128", as it was written first
            block = [int(side) if side.strip().isdecimal() else 0 for side in block.split("x")]
        if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            return block[0], block[1]
    return None


def _fp4(table: Table, name: str, prefix: str) -> Expansion:
    globally = f"{prefix}.weight_global_scale"
    has_global = globally in table.tensors
    size = _NV_GROUP if has_global else _MX_GROUP
    scale = f"{prefix}.weight_scale"
    return packed_fp4(table, name, scale, size, globally if has_global else None, divide=True)


def _expand(parts: Parts, weight: Tensor, *, bits: int, size: int, table: Table, name: str) -> None:
    rows, columns = weight.shape
    order = _order(parts, table, name, size)
    every = parts["scale"].float()
    every = every.view(1, 1).expand(rows, 1) if every.numel() == 1 else every
    zeros = None
    if "zero" in parts:
        zeros = unpack(parts["zero"].T, bits, rows).T.float()  # (rows, groups)
    for span in spans(rows, columns):
        numbers = unpack(parts["words"][span], bits, columns).float()
        zero = 2 ** (bits - 1) if zeros is None else zeros[span]
        weight[span] = scale_groups(numbers, zero, every[span], size, order)


def _bits4(parts: Parts, *, columns: int, size: int) -> Bits4:
    words, scales = parts["words"].contiguous(), parts["scale"].float()
    rows = len(words)
    zeros = unpack(parts["zero"].T, 4, rows).T if "zero" in parts else 8
    scales = scales.view(1, 1).expand(rows, 1) if scales.numel() == 1 else scales
    octets = words.view(torch.uint8)[:, : -(-columns // 2)]
    return whole_numbers(octets, columns, size, scales, zeros)


def _bits8(parts: Parts, *, columns: int, size: int) -> Bits8:
    codes, scales = unpack(parts["words"], 8, columns), parts["scale"].float()
    scales = scales.view(1, 1).expand(len(codes), 1) if scales.numel() == 1 else scales
    return Bits8((codes ^ 128).view(torch.int8), size, scales)


def _order(parts: Parts, table: Table, name: str, size: int) -> Tensor | None:
    """Return whose scale each of the inputs has, None if it is that of those beside it."""
    order = parts["order"].long() if "order" in parts else None
    if order is None or bool((order == -1).all()):  # as it was made, and never set
        return None
    if int(order.min()) < 0 or int(order.max()) >= max(parts["scale"].shape[-1:], default=1):
        raise table.refusal(f"have groups that aren't there in the `weight_g_idx` beside `{name}`")
    return None if torch.equal(order, torch.arange(len(order)) // size) else order
