"""How attention over latents is cut into programs: data, and the host's choices by it. No triton in here.

A program computes some rows, heads of queries of a few tokens of one sequence, against blocks of keys.
All heads share one head of keys, so that of many heads a token's own rows fill several programs.

The numbers are made for Hopper by arithmetic and by compiling them (`hopper_latents`); none was measured.
Products of 16 and 32 rows read the queries anew from shared memory in each warp, hence four warps, of which
two programs fit a processor: memory is what decodes wait for, up to 32 heads. From 64 rows on Hopper's wide
products are taken, whose warps read the queries once for 64 keys, all a processor has room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from inference.kernels.gpu.tiles import LEAST_ROWS, SHARED_BYTES, power_of_two

MOST_SPLITS = 128
LEAST_PART = 128  # keys: of fewer a part's sums, in float32, would be as much to write as the keys to read
WIDEST = 512  # numbers of a latent
_TURNS = 2  # how often the processors' room for programs is filled, as of other attention
_ROOM = 2  # programs of decodes that a processor has room for


@dataclass(frozen=True, slots=True)
class LatentTiles:
    """What a program computes, and how it goes over the keys."""

    rows: int  # of queries: a power of two, at least 16
    keys: int  # in one block
    warps: int
    stages: int  # blocks of keys in flight


_FEW = LatentTiles(16, 32, 4, 3)
_SOME = LatentTiles(32, 32, 4, 3)
_MANY = LatentTiles(64, 64, 8, 2)
_EXACT = LatentTiles(16, 16, 8, 2)  # of float32, which no matrix units multiply: registers are the limit


def latent_tiles(heads: int, itemsize: int, *, decodes: bool) -> LatentTiles:
    """Return how programs go over latents for so many heads of `itemsize` bytes a number."""
    if itemsize > 2:
        return _EXACT
    if not decodes or heads > _SOME.rows:
        return _MANY
    return _FEW if heads <= _FEW.rows else _SOME


def fixed_latent_tiles(itemsize: int) -> LatentTiles:
    """Return the one way in which all programs go over latents, for decodes and prompts alike."""
    return latent_tiles(1, itemsize, decodes=False)


def latent_tile(heads: int, longest: int, *, itemsize: int = 2, deterministic: bool = False) -> int:
    """Return how many queries of a sequence the programs of one query block take.

    As many as fill the rows of a whole number of programs. Deterministic: the same for every step.
    """
    if longest == 1 and not deterministic:
        return 1
    rows = latent_tiles(heads, itemsize, decodes=False).rows
    return rows // gcd(rows, heads)


def latent_splits(sequences: int, heads: int, processors: int, *, itemsize: int = 2) -> int:
    """Return into how many parts the keys of `sequences` decodes are split, a power of two.

    As many as give each of the device's processors enough programs, as of other attention. A part that
    a short sequence doesn't reach ends at once.
    """
    tiles = latent_tiles(heads, itemsize, decodes=True)
    programs = sequences * -(-heads // tiles.rows)
    room = _ROOM if tiles.rows < _MANY.rows else 1
    wanted = max(1, _TURNS * room * processors // programs)
    return min(MOST_SPLITS, 1 << (wanted.bit_length() - 1))


def latents_fit(latent: int, turned: int, itemsize: int) -> bool:
    """Return whether a processor holds what programs have of latents and rotated keys of so many numbers."""
    tiles = fixed_latent_tiles(itemsize)
    numbers = power_of_two(latent) + max(LEAST_ROWS, power_of_two(turned))
    held = itemsize * numbers * (tiles.rows + tiles.stages * tiles.keys)
    return latent <= WIDEST and held <= SHARED_BYTES
