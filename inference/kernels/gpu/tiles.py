"""How paged attention is cut into programs: data, and the host's choices by it. No triton in here.

A program computes `tile` queries of one sequence for the G heads that share one head of keys: that
many rows, padded to a power of two of at least 16, against blocks of keys.

The numbers are made for Hopper (228 KiB of shared memory and 65,536 registers per processor) by
arithmetic, by what others report, and by compiling them: none spills registers. On an H100 decodes
with heads of 64 and 128 numbers were measured with blocks of 32 to 128 keys, 2 to 8 warps and 2 to 5
stages, prompts with blocks of 32 to 128 keys, 64 and 128 rows: what stands here is the best of each,
or within 4 % of it. Heads of 256 and 512 numbers, and float32, are as arithmetic says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SHARED_BYTES = 227 * 1024  # of one program, at most, on Hopper
LEAST_ROWS = 16  # of a product of matrices
MOST_SPLITS = 32
_OTHERWISE = "serve this model with --native-kernels false"
_THREADS = 2048  # of a processor
# How often a processor's room for programs is filled. Once, and the longest of texts of unlike lengths is
# waited for alone: nano-vllm's workload took 1.03 of the time (0.5B on an H100; 1.16 with half as many). More
# programs than fit at once cost texts of one length up to 1.15 of attention's time
_TURNS = 2


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a program goes over the keys."""

    keys: int  # in one block: a power of two, at least 16
    warps: int
    stages: int  # blocks of keys in flight
    unmasked: bool = False  # blocks that every row sees have a loop of their own, without masks


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is chosen for heads of up to so many numbers."""

    dim: int  # rounded up to a power of two
    rows: int  # of a program with a piece of a prompt
    decode: Tiles
    prefill: Tiles
    fixed: Tiles  # for decodes and prompts alike, one loop


# By bytes of a number. Products of float32 are made by ordinary arithmetic, whose operands are kept
# in registers: larger tiles than these spill, as the compiler says.
_CHOICES = {
    2: (
        _Choice(64, 128, Tiles(32, 4, 3), Tiles(64, 8, 3, True), Tiles(64, 4, 3)),
        _Choice(128, 128, Tiles(32, 4, 3), Tiles(64, 8, 3, True), Tiles(64, 4, 3)),
        _Choice(256, 128, Tiles(32, 4, 3), Tiles(32, 8, 2, True), Tiles(32, 4, 2)),
        _Choice(512, 32, Tiles(32, 4, 2), Tiles(32, 8, 2, True), Tiles(32, 8, 2)),
    ),
    4: (
        _Choice(64, 64, Tiles(32, 4, 3), Tiles(32, 8, 2, True), Tiles(32, 8, 2)),
        _Choice(128, 64, Tiles(32, 8, 3), Tiles(16, 8, 2, True), Tiles(16, 8, 2)),
        _Choice(256, 32, Tiles(16, 8, 2), Tiles(16, 8, 2, True), Tiles(16, 8, 2)),
        _Choice(512, 16, Tiles(16, 8, 2), Tiles(16, 8, 2, True), Tiles(16, 8, 2)),
    ),
}
_FIXED_ROWS = 64  # at most: what Hopper's widest product takes
_SUMS = 4096  # of a warp: 128 registers of each thread, half of what it can have
_MOST_WARPS = 8  # with more of them threads have too few registers for the products


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def rows_of(tile: int, group: int) -> int:
    """Return the rows of a program: `tile` queries of `group` heads each, padded."""
    return max(LEAST_ROWS, power_of_two(tile * group))


def query_tile(
    heads: int,
    kv_heads: int,
    longest: int,
    *,
    dim: int = 128,
    itemsize: int = 2,
    deterministic: bool = False,
) -> int:
    """Return how many queries of a sequence one program takes in a step whose longest piece is `longest`.

    dim: of the widest head; itemsize: bytes of one of its numbers. Deterministic: the same for every
    step, so that a token is computed in one way, whether decoded or in a prompt, whole or in pieces.
    """
    group = heads // kv_heads
    choice = _choose(dim, itemsize)
    if deterministic:
        return max(1, min(choice.rows, _FIXED_ROWS) // group)
    if longest == 1:
        return 1
    # Few different sizes, since each is compiled by itself
    small = longest * group <= choice.rows // 2
    return max(1, choice.rows // (2 if small else 1) // group)


def choose_tiles(dim: int, itemsize: int, *, decodes: bool) -> Tiles:
    """Return how programs go over keys and values of up to `dim` numbers of `itemsize` bytes."""
    choice = _choose(dim, itemsize)
    return choice.decode if decodes else choice.prefill


def deterministic_tiles(dim: int, itemsize: int) -> Tiles:
    """Return the one way in which all programs go over such keys, for decodes and prompts alike.

    With it, `query_tile(..., deterministic=True)` and one split, a token's result has the same bits
    alone and in any batch, decoded or in a prompt, in one piece or in several: blocks of keys begin
    at multiples of their size, and a block that a row doesn't see leaves its sums as they are.
    """
    return _choose(dim, itemsize).fixed


def key_splits(sequences: int, kv_heads: int, processors: int, *, dim: int = 128, itemsize: int = 2) -> int:
    """Return into how many parts the keys of `sequences` decodes are split, a power of two.

    As many as give each of the device's processors enough programs: long contexts of few sequences
    would leave most of it idle. A part that a short sequence doesn't reach ends at once.
    """
    wanted = max(1, programs_wanted(dim, itemsize) * processors // (sequences * kv_heads))
    return min(MOST_SPLITS, 1 << (wanted.bit_length() - 1))


def programs_wanted(dim: int, itemsize: int) -> int:
    """Return how many programs of decodes each processor is to get, one after the other."""
    tiles = _choose(dim, itemsize).decode
    room = SHARED_BYTES // shared_bytes(LEAST_ROWS, tiles, dim, dim, itemsize)
    return _TURNS * max(1, min(room, _THREADS // (32 * tiles.warps)))


def fitted(tiles: Tiles, rows: int, dim: int, value_dim: int, itemsize: int) -> Tiles:
    """Return the tiles as a processor can hold them beside so many rows; raise ValueError if it never can.

    They fit as they are but where very many heads of queries share one of keys. It depends on shapes
    alone, so it changes no bits from step to step.
    """
    warps = power_of_two(rows * power_of_two(value_dim) // _SUMS)
    found = replace(tiles, warps=max(tiles.warps, warps))
    while warps > _MOST_WARPS or shared_bytes(rows, found, dim, value_dim, itemsize) > SHARED_BYTES:
        if found.stages > 1:
            found = replace(found, stages=found.stages - 1)
        elif found.keys > LEAST_ROWS:
            found = replace(found, keys=found.keys // 2)
        else:
            raise ValueError(
                f"a program of attention for {rows} heads of {max(dim, value_dim)} numbers that share one "
                f"head of keys is more than a processor holds: {_OTHERWISE}"
            )
    return found


def shared_bytes(rows: int, tiles: Tiles, dim: int, value_dim: int, itemsize: int) -> int:
    """Return what queries, weights and the keys and values in flight take of a processor's shared memory."""
    dim, value_dim = power_of_two(dim), power_of_two(value_dim)
    return itemsize * (rows * (dim + tiles.keys) + tiles.stages * tiles.keys * (dim + value_dim))


def _choose(dim: int, itemsize: int) -> _Choice:
    choices = _CHOICES.get(itemsize)
    if choices is None:
        raise ValueError(
            f"the kernel of paged attention takes numbers of {' or '.join(map(str, _CHOICES))} bytes, not of "
            f"{itemsize}: start with another --dtype"
        )
    choice = next((choice for choice in choices if dim <= choice.dim), None)
    if choice is None:
        raise ValueError(
            f"heads of {dim} numbers are wider than the {choices[-1].dim} that the kernel of paged attention"
            f" takes: {_OTHERWISE}"
        )
    return choice
