"""How programs go through a mixture's experts: in which tiles, and how one finds the expert that it computes.

A launch has as many programs as there can be tiles at most, whatever was chosen; each finds its own in
the table of where each expert's pairs begin, and those beyond the last end at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from inference.gpu.mixtures import ExpertWeight, Routing
from inference.quantised.blocks import BLOCK, Blocks, Numbers

FEW_TOKENS = 4  # up to which it may be faster to read an expert again for each token than to sort them
_LEAST_ROWS, _MOST_ROWS = 16, 128
_WIDE_ROWS = 32  # of float32, whose products are made of ordinary arithmetic in registers
_MOST_TOKENS = 1 << 17  # of a step
_FIXED_ROWS = 32  # for decodes and prompts alike
_TURN = 2048  # bytes that a turn of four warps loads of an output: 16 by each thread


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """What a program computes, and how."""

    rows: int  # pairs of one expert; 1: without the matrix units
    outputs: int
    inner: int  # inputs of one turn; in few bits whole blocks
    warps: int = 4
    stages: int = 3  # turns whose loads are in flight


def tiles_at_most(routing: Routing, rows: int) -> int:
    """Return how many tiles of so many pairs there can be: all full but one of each expert."""
    return min(routing.pairs, routing.experts + routing.pairs // rows)


def expert_tiles(tokens: int, chosen: int, weight: ExpertWeight, processors: int) -> Iterator[ExpertTile]:
    """Yield the tile that arithmetic prefers for so many tokens of so many experts each, then others.

    Few are preferred, as each has to be compiled: sizes of steps count by powers of two.
    """
    tokens = _power(tokens)
    if tokens > 1:
        yield from _several_rows(tokens, chosen, weight, processors)
    if tokens <= FEW_TOKENS:
        yield from _single_rows(tokens * chosen, weight, processors)


def preferred_tiles(chosen: int, weight: ExpertWeight, processors: int) -> set[ExpertTile]:
    """Return the tiles that arithmetic prefers for two tokens, and any more."""
    sizes = (1 << power for power in range(1, _MOST_TOKENS.bit_length()))
    return {next(expert_tiles(tokens, chosen, weight, processors)) for tokens in sizes}


def fixed_tile(weight: ExpertWeight) -> ExpertTile:
    """Return the one tile for any number of tokens: a function of the weight's form."""
    if weight.dtype.itemsize > 2:
        return ExpertTile(_LEAST_ROWS, 32, _depth(weight, 32), 4, 2)
    return ExpertTile(_FIXED_ROWS, 64, _depth(weight, 64), 4, 2 if _looks_up(weight) else 4)


def preferred_rows(tokens: int, chosen: int, weight: ExpertWeight) -> int:
    """Return how many pairs of an expert are computed together: about twice as many as it has on average."""
    most = _WIDE_ROWS if weight.dtype.itemsize > 2 else _MOST_ROWS
    if isinstance(weight.numbers, Blocks):
        most = min(most, _MOST_ROWS // 2)  # or registers spill
    wanted = min(tokens, -(-2 * tokens * chosen // weight.experts))
    return min(max(_power(wanted), _LEAST_ROWS), most)


def _several_rows(tokens: int, chosen: int, weight: ExpertWeight, processors: int) -> Iterator[ExpertTile]:
    rows = preferred_rows(tokens, chosen, weight)
    if weight.dtype.itemsize > 2:
        yield ExpertTile(rows, 32, _depth(weight, 32), 4, 2)
        return
    if rows >= 64:
        yield _high(rows, weight)
        return
    tiles = min(tokens * chosen, weight.experts)
    sizes = (128, 64, 32) if isinstance(weight.numbers, Blocks) else (64, 32, 16)
    size = _enough(sizes, tiles, weight, processors)
    for outputs in dict.fromkeys((size, sizes[0], sizes[1])):
        stages = (2, 1) if _looks_up(weight) else (4, 2)
        for count in stages if outputs == size else stages[:1]:
            warps = 8 if outputs * rows > 4096 else 4
            yield ExpertTile(rows, outputs, _depth(weight, 128), warps, count)


def _high(rows: int, weight: ExpertWeight) -> ExpertTile:
    """Return a tile of a prompt."""
    return ExpertTile(rows, 128, _depth(weight, 64), 8, 2 if _looks_up(weight) else 3)


def _single_rows(pairs: int, weight: ExpertWeight, processors: int) -> Iterator[ExpertTile]:
    numbers = weight.numbers
    sizes: tuple[int, ...] = (8, 4, 2)
    inner = _TURN // weight.dtype.itemsize
    if isinstance(numbers, Blocks):
        inner = 0
    elif numbers.stride(1) == 1 < numbers.stride(2):  # outputs lie side by side, and are read so
        sizes, inner = (64, 32), 64
    for outputs in dict.fromkeys((_enough(sizes, pairs, weight, processors), *sizes)):
        turn = inner or _blocks_of(outputs, weight) * BLOCK
        yield ExpertTile(1, outputs, _depth(weight, turn), 4, 1 if _looks_up(weight) else 3)


def _enough(sizes: tuple[int, ...], pairs: int, weight: ExpertWeight, processors: int) -> int:
    """Return the first of some numbers of outputs that gives each processor enough programs."""
    return next((n for n in sizes if pairs * -(-weight.outputs // n) >= 3 * processors), sizes[-1])


def _blocks_of(outputs: int, weight: ExpertWeight) -> int:
    """Return how many blocks of so many outputs a turn loads."""
    assert isinstance(weight.numbers, Blocks), "others have none"
    return min(max(1, _TURN // (BLOCK * weight.numbers.bits // 8 * outputs)), 8)


def _depth(weight: ExpertWeight, wanted: int) -> int:
    """Return how many inputs a turn has."""
    if isinstance(weight.numbers, Blocks):
        return max(BLOCK, min(wanted, _power(weight.numbers.blocks) * BLOCK))
    return min(wanted, max(16, _power(weight.inputs)))


def _looks_up(weight: ExpertWeight) -> bool:
    """Return whether numbers are looked up in a table, which would be loaded as weights are."""
    return isinstance(weight.numbers, Blocks) and weight.numbers.numbers is Numbers.LEVELS


def _power(number: int) -> int:
    return int(triton.next_power_of_2(number))


@triton.jit
def find_tile(begins_ptr, tile, experts, EXPERTS: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """Return a tile's expert, and the places of its first pair and behind the expert's last.

    Of tiles that there aren't it is no expert, but a number that is no less than theirs.
    """
    at = tl.arange(0, EXPERTS)
    begins = tl.load(begins_ptr + at, mask=at < experts, other=0)
    ends = tl.load(begins_ptr + at + 1, mask=at < experts, other=0)
    tiles = (ends - begins + ROWS - 1) // ROWS
    passed = tl.cumsum(tiles, 0)
    expert = tl.sum((passed <= tile).to(tl.int32), 0)
    own = at == expert
    first = tl.sum(tl.where(own, begins + (tile - passed + tiles) * ROWS, 0), 0)
    return expert, first, tl.sum(tl.where(own, ends, 0), 0)


@triton.jit
def find_pair(index_ptr, order_ptr, begins_ptr, place, experts, SORTED: tl.constexpr) -> tl.tensor:
    """Return the pair at a place and its expert, one that there isn't if nobody computes it."""
    pair = place
    if SORTED:
        some = place < tl.load(begins_ptr + experts)
        pair = tl.load(order_ptr + place, mask=some, other=0)
        expert = tl.where(some, tl.load(index_ptr + pair), -1)
    else:
        expert = tl.load(index_ptr + pair)
    return pair, expert
