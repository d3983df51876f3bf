"""AWQ: whole numbers of 4 bits, with a scale and a zero point for each group of inputs.

    weight[o, i] = scales[g, o] * (q[i, o] - zero[g, o])        g = i // group_size

In the form "gemm" eight outputs share a word, those of even numbers first; in "gemv" eight inputs do, as
they come, and what stands by outputs there does here by inputs.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from inference.quantised.bits import scale_groups, unpack, words_for
from inference.quantised.bits4 import Bits4, pack_codes, packed_bytes, whole_numbers
from inference.quantised.expansion import Expansion, Found, Parts, Table, spans
from inference.quantised.method import Method

_BITS = 4
_LOWER = 0x0F0F0F0F  # halves of a word's bytes
_IN_WORD = 8
_OCTETS = 4  # of a word
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # in a word, of the outputs as they come
_FLOATS = ("F16", "BF16", "F32")
_FORMS = ("gemm", "gemv")


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of AWQ holds; raise ModelUnavailable."""
    form = method.word("version", default="gemm")
    backend = method.word("backend", default="autoawq")
    if form not in _FORMS or backend == "llm-awq":
        raise method.variant(f"and its form {form!r} of {backend!r}")
    if method.number("bits", "w_bit", default=_BITS) != _BITS:
        raise method.variant(f"and other than {_BITS} bits")
    size = method.number("group_size", "q_group_size", default=128, least=-1)
    found = Found()
    read = _by_outputs if form == "gemm" else _by_inputs
    for name, prefix in table.ending(".qweight"):
        found.weights[f"{prefix}.weight"] = read(table, name, prefix, size)
    for name, prefix in table.ending(".scales"):  # which its activation is divided by
        if f"{prefix}.qzeros" in table.tensors:
            table.get(f"{prefix}.qweight", ("I32",), (None, None))
        elif f"{prefix}.qweight" not in table.tensors:
            raise method.variant(f"and its scaled activations (`{name}`)")
    found.notes.add(f"4 bits in groups of {size}")
    return found


def _by_outputs(table: Table, name: str, prefix: str, size: int) -> Expansion:
    words = table.get(name, ("I32",), (None, None))
    columns, rows = words.shape[0], words.shape[1] * _IN_WORD
    scales = table.get(f"{prefix}.scales", _FLOATS, (None, rows))
    table.get(f"{prefix}.qzeros", ("I32",), (scales.shape[0], words.shape[1]))
    size = _checked(table, prefix, columns, scales.shape[0], size)
    parts = {"words": name, "scales": f"{prefix}.scales", "zeros": f"{prefix}.qzeros"}
    kept = packed_bytes(rows, columns, size, zeros=True)
    codes = partial(_bits4_by_outputs, size=size) if kept else None
    return Expansion((rows, columns), parts, partial(_expand_by_outputs, size=size), codes, kept)


def _by_inputs(table: Table, name: str, prefix: str, size: int) -> Expansion:
    words = table.get(name, ("I32",), (None, None))
    rows, columns = words.shape[0], words.shape[1] * _IN_WORD
    zeros = table.get(f"{prefix}.qzeros", ("I32",), (rows, None))
    scales = table.get(f"{prefix}.scales", _FLOATS, (rows, None))
    size = columns if size == -1 else size
    groups = -(-columns // size) if size else 0
    if not groups or words_for(groups, _BITS) > zeros.shape[1] or groups > scales.shape[1]:
        raise table.refusal(f"have too few groups in `{prefix}.qzeros` or `{prefix}.scales`")
    parts = {"words": name, "scales": f"{prefix}.scales", "zeros": f"{prefix}.qzeros"}
    kept = packed_bytes(rows, columns, size, zeros=True)
    codes = partial(_bits4_by_inputs, size=size) if kept else None
    return Expansion((rows, columns), parts, partial(_expand_by_inputs, size=size), codes, kept)


def _checked(table: Table, prefix: str, columns: int, groups: int, size: int) -> int:
    size = columns if size == -1 else size
    if size == 0 or -(-columns // size) != groups:
        raise table.refusal(
            f"have {groups} groups in `{prefix}.scales`, for {columns} inputs in groups of {size}"
        )
    return size


def _expand_by_outputs(parts: Parts, weight: Tensor, *, size: int) -> None:
    rows, columns = weight.shape
    for span in spans(rows, columns, _IN_WORD):
        words = slice(span.start // _IN_WORD, span.stop // _IN_WORD)
        numbers = _in_order(parts["words"][:, words]).T.contiguous().float()  # (some rows, columns)
        zeros = _in_order(parts["zeros"][:, words]).T.float()
        weight[span] = scale_groups(numbers, zeros, parts["scales"][:, span].T.float(), size, None)


def _in_order(words: Tensor) -> Tensor:
    packed = unpack(words, _BITS, words.shape[1] * _IN_WORD)
    return packed.unflatten(-1, (-1, _IN_WORD))[..., _PLACES].flatten(-2)


def _bits4_by_outputs(parts: Parts, *, size: int) -> Bits4:
    words, zeros = parts["words"], _in_order(parts["zeros"]).T
    codes = pack_codes(_in_order(words).T) if len(words) % 2 else _pairs_in_order(words)
    return whole_numbers(codes, len(words), size, parts["scales"].T, zeros)


def _pairs_in_order(words: Tensor) -> Tensor:
    """Return what `pack_codes` makes of words' codes in order, in a fifth of the time.

    Words of two neighbouring inputs have a byte's halves at the same places.
    """
    turned = words.T.contiguous()  # (words of outputs, inputs)
    first, second = turned[:, ::2], turned[:, 1::2]
    low = (first & _LOWER) | ((second & _LOWER) << _BITS)
    high = ((first >> _BITS) & _LOWER) | (second & ~_LOWER)
    octets = [each.view(torch.uint8).unflatten(1, (-1, _OCTETS)) for each in (low, high)]
    found = words.new_empty((len(turned), _IN_WORD, len(words) // 2), dtype=torch.uint8)
    for output, place in enumerate(_PLACES):
        found[:, output] = octets[place % 2][..., place // 2]
    return found.flatten(0, 1)


def _bits4_by_inputs(parts: Parts, *, size: int) -> Bits4:
    words = parts["words"].contiguous()
    columns = words.shape[1] * _IN_WORD
    count = -(-columns // size)
    zeros = unpack(parts["zeros"], _BITS, count)
    return whole_numbers(words.view(torch.uint8), columns, size, parts["scales"][:, :count], zeros)


def _expand_by_inputs(parts: Parts, weight: Tensor, *, size: int) -> None:
    rows, columns = weight.shape
    count = -(-columns // size)
    for span in spans(rows, columns):
        numbers = unpack(parts["words"][span], _BITS, columns).float()
        zeros = unpack(parts["zeros"][span], _BITS, count).float()
        scales = parts["scales"][span, :count].float()
        weight[span] = scale_groups(numbers, zeros, scales, size, None)
