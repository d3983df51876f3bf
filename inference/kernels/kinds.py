"""How weights are kept that the C extension reads."""

from __future__ import annotations

from enum import StrEnum

import torch


class WeightKind(StrEnum):
    """How a packed weight is kept; in the order of enum Kind in native.h."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"  # symmetric, a scale for each output; so are the inputs as they come, a scale for each row
    CODED = "bfloat16 in 12 bits"  # exactly the same values
    INT6 = "int6"  # as int8, but multiples of four; needs VPDPBUSD
    BITS4 = "4 bits"  # by groups, as files have them that were quantised before
    BITS8 = "8 bits"  # the same


STEPS = {WeightKind.INT8: 1, WeightKind.INT6: 4}  # between the integers of weights
IN_FEW_BITS = (WeightKind.BITS4, WeightKind.BITS8)  # by numbers of whole groups, inputs unrounded
DTYPES = {  # of rows as they are packed, and as they are read
    WeightKind.FLOAT32: torch.float32,
    WeightKind.BFLOAT16: torch.bfloat16,
    WeightKind.FLOAT16: torch.float16,
    WeightKind.INT8: torch.int8,
    WeightKind.CODED: torch.bfloat16,
    WeightKind.INT6: torch.int8,
    WeightKind.BITS8: torch.uint8,
}
