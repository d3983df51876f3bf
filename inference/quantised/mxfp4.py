"""MXFP4 as gpt-oss has it: experts in E2M1, two numbers a byte, with a power of two for every 32 of a row."""

from __future__ import annotations

from torch import Tensor

from inference.quantised.bits import fp4, power_of_two
from inference.quantised.expansion import Expansion, Found, Parts, Table, spans
from inference.quantised.method import Method

_OCTETS = 16  # that share a scale


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of MXFP4 holds; raise ModelUnavailable."""
    found = Found()
    for name, weight in table.ending("_blocks"):
        experts, rows, groups, _ = table.get(name, ("U8",), (None, None, None, _OCTETS)).shape
        scales = f"{weight}_scales"
        table.get(scales, ("U8", "F8_E8M0"), (experts, rows, groups))
        # The model multiplies rows with them from the right: it has them turned
        shape = (experts, 2 * _OCTETS * groups, rows)
        found.weights[weight] = Expansion(shape, {"octets": name, "scales": scales}, _expand)
    found.notes.add(f"groups of {2 * _OCTETS}")
    return found


def _expand(parts: Parts, weight: Tensor) -> None:
    for octets, scales, expert in zip(parts["octets"], parts["scales"], weight, strict=True):
        columns, rows = expert.shape
        for span in spans(rows, columns):
            numbers = fp4(octets[span]) * power_of_two(scales[span])[..., None]
            expert[:, span] = numbers.flatten(-2).T
