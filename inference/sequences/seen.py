"""What a step sees: the rows of images among its tokens, and positions that aren't the tokens' own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.sequences.state import Integers, Pieces


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the tokens of a step are given otherwise than text is."""

    at: Integers  # (n,): the step's tokens that stand for rows of images, rising
    rows: Tensor | None  # (n, hidden), contiguous float32; None if n is 0
    positions: Integers | None  # (3, tokens): the rotary embedding's; None: the tokens' own


def limits_in(pieces: Pieces) -> Integers | None:
    """Return the positions (tokens,) from which on tokens see nothing; None: the ones behind them."""
    sights = pieces.table.sights
    if not sights:
        return None
    chunks = [
        (chunk, sights[chunk.sequence.slot]) for chunk in pieces.prompts if chunk.sequence.slot in sights
    ]
    if not any(sight.two_way for _, sight in chunks):
        return None
    limits: Integers = pieces.positions + 1
    firsts = dict(zip(pieces.slots.tolist(), _firsts(pieces).tolist(), strict=True))
    for chunk, sight in chunks:
        first = firsts[chunk.sequence.slot]
        limits[first : first + chunk.size] = sight.limits(chunk.start, chunk.stop)
    return limits


def _firsts(pieces: Pieces) -> Integers:
    """Return which of a step's tokens is the first of each piece."""
    sizes = pieces.stops - pieces.starts
    firsts: Integers = np.cumsum(sizes) - sizes
    return firsts


def seen_in(pieces: Pieces, *, embedded: bool = False) -> Seen | None:
    """Return what a step sees, None if it is blind; `embedded`: rows as the language model is given them."""
    sights = pieces.table.sights
    if not sights:
        return None
    found = [(at, sights[slot]) for at, slot in enumerate(pieces.slots.tolist()) if slot in sights]
    if not found:
        return None
    firsts = _firsts(pieces)
    places: list[Integers] = []
    parts: list[Tensor] = []
    positions = np.tile(pieces.positions, (3, 1)) if any(s.positions is not None for _, s in found) else None
    for at, sight in found:
        start, stop, first = (int(each[at]) for each in (pieces.starts, pieces.stops, firsts))
        low, high = sight.between(start, stop)
        if low < high:
            places.append(sight.places[low:high] - start + first)
            parts += sight.rows(low, high, embedded=embedded)
        if positions is not None and sight.positions is not None:
            positions[:, first : first + stop - start] = sight.rotary(start, stop)
    if not parts and positions is None:
        return None
    rows = torch.cat(parts).contiguous() if parts else None
    return Seen(np.concatenate(places) if places else np.empty(0, dtype=np.int64), rows, positions)
