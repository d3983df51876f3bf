"""Weights in 4 bits as the C extension reads them, by panels of outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.quantised.bits4 import Bits4

_PANEL = 32  # outputs that are packed side by side, as in native.h
_CODES = 8  # of a word


def panels(weight: Bits4) -> dict[str, Tensor]:
    """Return what `Linear` of native.h points to, by its names; zeros stand beyond n and k.

    `packed`: (n / 32, k / 8, 32) words; `scales` and, if there are any, `zeros`: (n / 32, groups, 32).
    """
    octets = pad(weight.codes, (0, -weight.codes.shape[1] % 4, 0, -len(weight.codes) % _PANEL))
    found = {
        "packed": _side_by_side(octets.contiguous().view(torch.int32)),
        "scales": by_panel(weight.scales),
        "table": weight.levels.clone(),
    }
    if weight.zeros is not None:
        found["zeros"] = by_panel(weight.zeros)
    return found


def read_bits4(packed: Mapping[str, Tensor], inputs: int, group: int, ids: Tensor) -> Bits4:
    """Return rows (ids, k) of a weight from what the C extension reads."""
    which, places = ids // _PANEL, ids % _PANEL
    words = packed["packed"].view(torch.int32).view(-1, -(-inputs // _CODES), _PANEL)[which, :, places]
    octets = words.contiguous().view(torch.uint8)[:, : -(-inputs // 2)]
    zeros = packed["zeros"][which, :, places] if "zeros" in packed else None
    scales = packed["scales"][which, :, places]
    return Bits4(octets, inputs, group, scales, packed["table"], zeros)


def by_panel(each: Tensor) -> Tensor:
    """Return what groups have, (n, groups), by panels: (n / 32, groups, 32) in float32."""
    return _side_by_side(pad(each.float(), (0, 0, 0, -len(each) % _PANEL)))


def _side_by_side(rows: Tensor) -> Tensor:
    return rows.unflatten(0, (-1, _PANEL)).transpose(1, 2).contiguous()
