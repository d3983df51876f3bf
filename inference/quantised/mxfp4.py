"""MXFP4 as gpt-oss has it: experts in E2M1, two numbers a byte, with a power of two for every 32 of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.quantised.bits import FP4_LEVELS, fp4, power_of_two
from inference.quantised.bits4 import Bits4, packed_bytes
from inference.quantised.codes import Codes
from inference.quantised.expansion import Expansion, Found, Parts, Table, spans
from inference.quantised.method import Method

_OCTETS = 16  # that share a scale
_GROUP = 2 * _OCTETS  # numbers that do


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of MXFP4 holds; raise ModelUnavailable."""
    found = Found()
    for name, weight in table.ending("_blocks"):
        experts, rows, groups, _ = table.get(name, ("U8",), (None, None, None, _OCTETS)).shape
        scales = f"{weight}_scales"
        table.get(scales, ("U8", "F8_E8M0"), (experts, rows, groups))
        # The model multiplies rows with them from the right: it has them turned
        shape = (experts, _GROUP * groups, rows)
        kept = experts * packed_bytes(rows, shape[1], _GROUP, zeros=False)
        parts = {"octets": name, "scales": scales}
        found.weights[weight] = Expansion(shape, parts, _expand, codes_bytes=kept, experts=_experts)
    found.notes.add(f"groups of {_GROUP}")
    return found


def _expand(parts: Parts, weight: Tensor) -> None:
    for octets, scales, expert in zip(parts["octets"], parts["scales"], weight, strict=True):
        columns, rows = expert.shape
        for span in spans(rows, columns):
            numbers = fp4(octets[span]) * power_of_two(scales[span])[..., None]
            expert[:, span] = numbers.flatten(-2).T


def _experts(parts: Parts) -> list[Codes]:
    levels = torch.tensor(FP4_LEVELS)
    return [
        Bits4(octets.flatten(1), octets.shape[1] * _GROUP, _GROUP, power_of_two(scales), levels)
        for octets, scales in zip(parts["octets"], parts["scales"], strict=True)
    ]
