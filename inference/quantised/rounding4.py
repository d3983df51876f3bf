"""Weights rounded to 4 bits as bitsandbytes has them: sixteen levels, times the greatest of a block of 64.

NF4 are the levels that normally distributed numbers fall to alike often (Dettmers et al. 2023, QLoRA,
appendix E); FP4 those of floating point with two bits of exponent and one of mantissa, as bitsandbytes
counts them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.quantised.bits4 import Bits4, pack_codes

BLOCK = 64  # inputs that share a scale
_AT_ONCE = 64 * 1024  # numbers, which stay in a cache
_FP4 = (0.0, 0.005208333, 0.16666667, 0.25, 0.33333333, 0.5, 0.66666667, 1.0)
LEVELS = {
    "nf4": (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ),
    "fp4": (*(-each for each in reversed(_FP4)), *_FP4),
}


def round_rows(weight: Tensor, rounding: str) -> Bits4:
    """Return a weight (n, k) rounded to the nearest levels of `nf4` or `fp4`, a scale for BLOCK of a row."""
    levels = torch.tensor(LEVELS[rounding])
    borders = ((levels[1:] + levels[:-1]) / 2).tolist()
    codes, scales = [], []
    for rows in weight.split(max(_AT_ONCE // weight.shape[1], 1)):
        blocks = pad(rows.float(), (0, -rows.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
        greatest = blocks.abs().amax(-1)
        shares = blocks / greatest.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
        found, above = torch.zeros_like(shares), torch.empty_like(shares)
        # A search can't be foreseen, and takes several times as long; so do comparisons that give a bool
        for border in borders:
            found += torch.gt(shares, border, out=above)
        codes.append(pack_codes(found.flatten(1)[:, : rows.shape[1]].to(torch.uint8)))
        scales.append(greatest)
    return Bits4(torch.cat(codes), weight.shape[1], BLOCK, torch.cat(scales), levels)
