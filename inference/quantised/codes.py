"""Weights that are computed with in the few bits that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from inference.quantised import bits4, bits8
from inference.quantised.bits4 import Bits4
from inference.quantised.bits8 import Bits8

Codes: TypeAlias = Bits4 | Bits8


def join(parts: Sequence[Codes | None]) -> Codes | None:
    """Return several weights' outputs as one weight's; None if one isn't there, or they are unlike."""
    narrow = [each for each in parts if isinstance(each, Bits4)]
    if len(narrow) == len(parts):
        return bits4.join(narrow)
    wide = [each for each in parts if isinstance(each, Bits8)]
    return bits8.join(wide) if len(wide) == len(parts) else None


def bits_of(codes: Codes) -> int:
    """Return in how many bits a weight is."""
    return 4 if isinstance(codes, Bits4) else 8
