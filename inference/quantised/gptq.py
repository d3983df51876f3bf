"""GPTQ: whole numbers of 2 to 8 bits, packed along the inputs, with a scale and a zero point for each group.

    weight[o, i] = scales[g, o] * (q[i, o] - zero[g, o])        g = g_idx[i]

What is stored of a zero point in the first version of the form is one less than it, and wraps around.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from inference.errors import ModelUnavailable
from inference.quantised.bits import WORD, scale_groups, unpack, words_for
from inference.quantised.bits4 import Bits4, packed_bytes, whole_numbers
from inference.quantised.bits8 import LEAST_RUN, Bits8, bytes_in_8_bits
from inference.quantised.expansion import Expansion, Found, Parts, Table, spans
from inference.quantised.method import Method

_BITS = (2, 3, 4, 8)
_MIDDLE = 128  # of 8 bits, the zero point of weights that are as large up as down
_FLOATS = ("F16", "BF16", "F32")
_FORMATS = {"": 1, "gptq": 1, "gptq_v2": 0}  # what is added to zero points


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of GPTQ holds; raise ModelUnavailable."""
    added = _added(method)
    found = Found()
    for name, prefix in table.ending(".qweight"):
        found.weights[f"{prefix}.weight"] = _weight(table, method, name, prefix, added, found)
    return found


def _added(method: Method) -> int:
    form = method.word("checkpoint_format", "format", default="gptq")
    if method.settings.get("is_marlin_format"):
        form = "marlin"
    if form not in _FORMATS:
        raise method.variant(f"and its form {form!r}")
    return _FORMATS[form]


def _weight(table: Table, method: Method, name: str, prefix: str, added: int, found: Found) -> Expansion:
    words = table.get(name, ("I32",), (None, None))
    scales = table.get(f"{prefix}.scales", _FLOATS, (None, words.shape[1]))
    groups, rows = scales.shape
    zeros = table.get(f"{prefix}.qzeros", ("I32",), (groups, None))
    bits = next((each for each in _BITS if words_for(rows, each) == zeros.shape[1]), None)
    if bits is None or words.shape[0] * WORD % bits:
        raise table.refusal(f"have `{prefix}.qzeros` with {zeros.shape[1]} words for {rows} zero points")
    _check_bits(table, method, bits, prefix)
    columns = words.shape[0] * WORD // bits
    parts = {"words": name, "scales": f"{prefix}.scales", "zeros": f"{prefix}.qzeros"}
    size = method.number("group_size", default=-1, least=-1)
    if f"{prefix}.g_idx" in table.tensors:
        table.get(f"{prefix}.g_idx", ("I32", "I64"), (columns,))
        parts["order"] = f"{prefix}.g_idx"
    size = columns if size == -1 else size
    if size == 0 or ("order" not in parts and -(-columns // size) != groups):
        raise table.refusal(
            f"have {groups} groups in `{prefix}.scales`, for {columns} inputs in groups of {size}"
        )
    found.notes.add(f"{bits} bits in groups of {size}" if groups > 1 else f"{bits} bits by rows")
    expand = partial(_expand, bits=bits, size=size, added=added, name=name)
    kept = packed_bytes(rows, columns, size, zeros=True) if bits == 4 else 0
    if bits == 8 and (size == columns or size % LEAST_RUN == 0):
        zeros = (unpack(table.content(parts["zeros"]), 8, rows) + added) & 255
        kept = bytes_in_8_bits(rows, columns, size) if bool((zeros == _MIDDLE).all()) else 0
    if kept and "order" in parts:
        kept = kept if _order(table.content(parts["order"]), groups, size, name) is None else 0
    codes = partial(_bits4, size=size, added=added) if bits == 4 else partial(_bits8, size=size)
    return Expansion((rows, columns), parts, expand, codes if kept else None, kept, bits)


def _check_bits(table: Table, method: Method, bits: int, prefix: str) -> None:
    said = method.number("bits", default=bits)
    if said != bits and not method.settings.get("dynamic"):  # by which some modules have others
        raise table.refusal(f"have {bits} bits in `{prefix}.qzeros`, where config.json says {said}")


def _expand(parts: Parts, weight: Tensor, *, bits: int, size: int, added: int, name: str) -> None:
    rows, columns = weight.shape
    order = _order(parts["order"], len(parts["scales"]), size, name) if "order" in parts else None
    zeros = (unpack(parts["zeros"], bits, rows) + added) & (2**bits - 1)  # (groups, rows)
    for span in spans(rows, columns):
        numbers = unpack(parts["words"][:, span].T, bits, columns).float()
        scales = parts["scales"][:, span].T.float()  # (some rows, groups)
        weight[span] = scale_groups(numbers, zeros[:, span].T.float(), scales, size, order)


def _bits4(parts: Parts, *, size: int, added: int) -> Bits4:
    words, rows = parts["words"].T, parts["words"].shape[1]
    zeros = (unpack(parts["zeros"], 4, rows) + added) & 15
    octets = unpack(words, 8, 4 * words.shape[1])
    return whole_numbers(octets, 8 * words.shape[1], size, parts["scales"].T, zeros.T)


def _bits8(parts: Parts, *, size: int) -> Bits8:
    octets = unpack(parts["words"].T, 8, 4 * len(parts["words"]))
    return Bits8((octets ^ _MIDDLE).view(torch.int8), size, parts["scales"].T.float())


def _order(order: Tensor, groups: int, size: int, name: str) -> Tensor | None:
    """Return which group each input is of, None if these lie side by side; raise ModelUnavailable."""
    least, most = int(order.min()), int(order.max())
    if least < 0 or most >= groups:
        raise ModelUnavailable(
            f"The model is quantised (gptq), and the `g_idx` beside `{name}` names group "
            f"{most if least >= 0 else least} of {groups}: the file is damaged, download it again"
        )
    usual = torch.arange(len(order)) // size
    as_they_lie = groups == int(usual[-1]) + 1 and bool((order == usual).all())
    return None if as_they_lie else order.long()
