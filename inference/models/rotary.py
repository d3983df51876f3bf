"""Cosines and sines by position, computed once where a model's rotary embedding allows it."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.trace import Pair, Rope
from inference.planning.positions import ENDLESS

BLOCK = 256  # positions computed at once: always the same ones together, so that their bits are the same


class RopeTable:
    """The rotations of all positions from 0 on, computed in blocks when they are first needed.

    `positions`: how many there can be; the embedding isn't asked for more, as some change all rotations then.
    There is room for as many from the first long text on. On a CPU what isn't computed yet of it takes no
    memory, and no longer text has the tables copied.
    """

    def __init__(
        self,
        rope: Rope,
        *,
        spread: bool = False,
        doubled: bool = False,
        backwards: bool = False,
        positions: int | None = None,
    ) -> None:
        self._rope = rope
        self._doubled = doubled  # see `double`
        self._backwards = backwards  # see `turn_back`
        self._last = (ENDLESS if positions is None else positions) - 1
        self._most = 0 if positions is None else positions
        self._spread = spread  # see `spread_pairs`
        self._room = self._block(0)
        self._size = BLOCK  # positions that are computed
        self._axes: Tensor | None = None  # set by `at`

    def upto(self, last: int) -> Pair:
        """Return the cosines and sines (more than last, rotary_dim), contiguous float32, of 0, 1...."""
        self._reach(last)
        cosines, sines = self._room
        return cosines[: self._size], sines[: self._size]

    def at(self, positions: Tensor) -> Pair:
        """Return the cosines and sines (n, rotary_dim) of positions (3, n) in time, height and width.

        Their numbers are those of the tables, bit by bit. Raises ValueError if the embedding's aren't.
        """
        self._reach(int(positions.max()))
        if self._axes is None:
            self._axes = self._find_axes()
        which = positions[self._axes].T  # (n, rotary_dim)
        cosines, sines = self._room
        return cosines.gather(0, which), sines.gather(0, which)

    def _find_axes(self) -> Tensor:
        """Return by which of the three each number is rotated, (rotary_dim,)."""
        steps = torch.eye(3, dtype=torch.int64)
        moved = self._pair(steps)[1] != self._pair(torch.zeros(3, 1, dtype=torch.int64))[1]  # (3, rotary_dim)
        axes = moved.int().argmax(0)
        some = torch.tensor([[3, 0, 5, 2], [1, 4, 0, 7], [2, 6, 8, 0]])
        found = (table.gather(0, some[axes].T) for table in self._room)
        if not all(_equal(*each) for each in zip(found, self._pair(some), strict=True)):
            raise ValueError("its rotary embedding makes something else of positions in an image")
        return axes

    @torch.inference_mode()
    def _reach(self, last: int) -> None:
        if last < self._size:
            return
        size = -(-(last + 1) // BLOCK) * BLOCK
        if size > len(self._room[0]):
            self._widen(size)
        for start in range(self._size, size, BLOCK):
            for table, block in zip(self._room, self._block(start), strict=True):
                table[start : start + BLOCK] = block
        self._size = size

    def _widen(self, size: int) -> None:
        wanted = max(size, -(-self._most // BLOCK) * BLOCK, 2 * self._size)
        cosines, sines = (each.new_empty(wanted, each.shape[1]) for each in self._room)
        for wider, table in zip((cosines, sines), self._room, strict=True):
            wider[: self._size] = table[: self._size]
        self._room = cosines, sines  # of equal length, should there be no memory

    def _block(self, start: int) -> Pair:
        # Rows behind the last position repeat it
        return self._pair(torch.arange(start, start + BLOCK).clamp(max=self._last))

    def _pair(self, positions: Tensor) -> Pair:
        pair = self._rope.tables(positions)
        pair = double(pair) if self._doubled else pair
        pair = turn_back(pair) if self._backwards else pair
        cosines, sines = spread_pairs(pair) if self._spread else pair
        return cosines.float().contiguous(), sines.float().contiguous()


def spread_pairs(pair: Pair) -> Pair:
    """Return rotations made for halves (a b a b) in the order for pairs of neighbours (a a b b)."""
    cosines, sines = (each[:, : each.shape[1] // 2].repeat_interleave(2, 1) for each in pair)
    return cosines, sines


def double(pair: Pair) -> Pair:
    """Return rotations of which only the first half was made (a b) as they are for halves (a b a b)."""
    cosines, sines = (torch.cat((each, each), 1) for each in pair)
    return cosines, sines


def turn_back(pair: Pair) -> Pair:
    """Return rotations the other way."""
    cosines, sines = pair
    return cosines, -sines


def is_static(rope: Rope, positions: int) -> bool:
    """Return whether a position's rotation doesn't depend on the others of its step, up to `positions`."""
    few = torch.tensor(sorted({0, 1, positions // 2, positions - 1}))
    together = rope.tables(few)
    backwards = [rope.tables(few[index : index + 1]) for index in reversed(range(len(few)))][::-1]
    alone = (torch.cat([pair[part] for pair in backwards]) for part in range(2))
    return all(_equal(*each) for each in zip(together, alone, strict=True))


def _equal(found: Tensor, expected: Tensor) -> bool:
    # The last bits may differ: vectors and single numbers are computed by different code
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=1e-6)
