"""In which steps the two prompts of a proof are computed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from inference.sequences.state import Chunk, Sequence

Steps = Callable[[list[Sequence]], list[list[Chunk]]]


def packed_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps with pieces of prompts, single tokens beside a piece, and single tokens together."""
    long, short = sequences
    middle, end, near_end = long.length // 2, long.length, short.length - 3
    return [
        [Chunk(long, 0, middle), Chunk(short, 0, near_end)],
        [Chunk(short, near_end, near_end + 1), Chunk(long, middle, end - 2)],
        [Chunk(long, end - 2, end - 1), Chunk(short, near_end + 1, near_end + 2)],
        [Chunk(long, end - 1, end), Chunk(short, near_end + 2, near_end + 3)],
    ]


def odd_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps of pieces of many sizes, the short prompt's beside the long one's."""
    steps: list[list[Chunk]] = []
    starts = [0] * len(sequences)
    for size in cycle((3, 1, 7, 16, 2, 11, 5)):
        ends = [min(start + size, each.length) for start, each in zip(starts, sequences, strict=True)]
        cut = [Chunk(*each) for each in zip(sequences, starts, ends, strict=True) if each[1] < each[2]]
        if not cut:
            return steps
        steps.append(cut)
        starts = ends
    raise AssertionError("a cycle has no end")


def single_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps of a token of each prompt."""
    longest = max(sequence.length for sequence in sequences)
    return [
        [Chunk(sequence, at, at + 1) for sequence in sequences if at < sequence.length]
        for at in range(longest)
    ]


def alone_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps of one whole prompt each."""
    return [[Chunk(sequence, 0, sequence.length)] for sequence in sequences]


def sequential_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps with whole prompts first, as that is how these levels are scheduled."""
    whole = [[Chunk(sequence, 0, sequence.length - 2)] for sequence in sequences]
    last = [[Chunk(s, s.length - left, s.length - left + 1) for s in sequences] for left in (2, 1)]
    return whole + last


def padded_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps in which the shorter prompt is padded all along, beside the longer one's end."""
    long, short = sequences
    first = long.length - short.length
    steps = [[Chunk(long, 0, first)]] if first else []
    start = 0
    for size in cycle((1, 3)):
        stop = min(start + size, short.length)
        if start == stop:
            return steps
        steps.append([Chunk(long, first + start, first + stop), Chunk(short, start, stop)])
        start = stop
    raise AssertionError("a cycle has no end")
