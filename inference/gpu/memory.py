"""How many bytes of a device are left for KV cache and states: what else is needed is measured, not guessed.

The model's biggest steps are run once, and its biggest graphs captured, over a cache that is just big
enough for them. What they took beside the weights, and what others have of the device, is taken off
the share of its memory that may be used (`--cuda-memory-fraction`), and so is a reserve.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from inference.errors import ModelUnavailable
from inference.gpu.runner import GpuRunner, Launched
from inference.gpu.slots import MirroredTable
from inference.kv_cache.blocks import blocks_for
from inference.sequences.computing import Sampler
from inference.sequences.state import Chunk, Decodes, Sequence, pack
from inference.sequences.work import Work
from inference.shortage import is_shortage
from inference.types import CoreRequest, LogprobsMode, Sampling

MIB = 1024 * 1024

# What measuring once can't see: memory that torch's allocator cuts in pieces it can't put together again
# (it takes blocks of 2 to 20 MiB, and steps have many sizes), libraries' workspaces made by shapes that
# didn't come up, kernels that are loaded later. On 80 GiB that is 1.6 GiB.
_RESERVE_SHARE = 0.02
_RESERVE_LEAST = 256 * MIB
_BY_HOST = Sampling(sample=True, typical_p=0.01)  # in the way that takes the most memory, but for
# what is read of whole rows where they are flat and much is to be kept: ids, and numbers twice, in 64 bits.
# To do so takes the host ten seconds or more
_FLAT_BYTES = 24
_BY_DEVICE = Sampling(sample=True, top_p=0.9, repetition_penalty=1.1)


class Meter(Protocol):
    """What a device says of its memory, in bytes."""

    @property
    def total(self) -> int:
        """Return all there is."""

    @property
    def free(self) -> int:
        """Return what nobody has taken."""

    def begin(self) -> None:
        """Give back what is kept for later use, and begin to watch for the peak."""

    @property
    def peak(self) -> int:
        """Return how much more than at the beginning was needed at most."""


class CudaMeter:
    """The meter of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    @property
    def total(self) -> int:
        """Return all there is."""
        return torch.cuda.mem_get_info(self._device)[1]

    @property
    def free(self) -> int:
        """Return what nobody has taken."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def begin(self) -> None:
        """Give back what is kept for later use, and begin to watch for the peak."""
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    @property
    def peak(self) -> int:
        """Return how much more than at the beginning was needed at most."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where a device's memory goes, in bytes."""

    total: int
    share: int  # of it, that may be used
    taken: int  # by weights, and by others
    steps: int  # at most, by what a step computes, and by what is kept of requests from step to step
    graphs: int
    reserve: int

    @property
    def cache(self) -> int:
        """Return what is left for keys, values and states; nothing, or less, if the rest doesn't fit."""
        return self.share - self.taken - self.steps - self.graphs - self.reserve

    def __str__(self) -> str:
        """Return it as one line for a person."""
        return (
            f"Measured: of {self.total / MIB:,.0f} MiB {self.share / MIB:,.0f} may be used; weights and "
            f"others have {self.taken / MIB:,.0f}, steps need {self.steps / MIB:,.0f}, graphs "
            f"{self.graphs / MIB:,.0f}, {self.reserve / MIB:,.0f} are kept in reserve: "
            f"{max(self.cache, 0) / MIB:,.0f} MiB are left for the KV cache, and states if there are any"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The biggest steps that there will be."""

    tokens: int
    sequences: int
    longest: int  # tokens of a sequence
    logit_rows: int  # of prompts whose log-probabilities were asked for
    vocabulary: int

    @property
    def blocks(self) -> int:
        """Return a cache's size that holds any of them."""
        return blocks_for(self.tokens) + 2 * self.sequences


Parts = tuple[GpuRunner, Sampler[Launched], MirroredTable]  # of a cache of so many blocks


def measure(make: Callable[[int], Parts], extent: Extent, meter: Meter, fraction: float) -> Room:
    """Run the biggest steps, capture the biggest graphs, and return where memory goes."""
    meter.begin()
    runner, sampler, table = make(extent.blocks)
    meter.begin()  # so that the cache isn't counted
    for sampling in (_BY_HOST, _BY_DEVICE):
        _run(runner, sampler, table, _prompts(table, extent, sampling))
    _run(runner, sampler, table, _scored(table, extent))
    steps = meter.peak + _FLAT_BYTES * extent.sequences * extent.vocabulary + runner.state.bytes
    graphs = _graphs(runner, meter)
    del runner, sampler, table
    meter.begin()
    share = int(meter.total * fraction)
    reserve = max(int(share * _RESERVE_SHARE), _RESERVE_LEAST)
    taken = meter.total - meter.free
    return Room(total=meter.total, share=share, taken=taken, steps=steps, graphs=graphs, reserve=reserve)


@contextmanager
def memory_named(what: str, device: torch.device) -> Iterator[None]:
    """Turn a GPU's running out of memory into a ModelUnavailable that says while `what`, and what to do."""
    try:
        yield
    except RuntimeError as error:  # libraries have their own words for it
        if device.type == "cpu" or not is_shortage(error):
            raise
        meter = CudaMeter(device)
        raise ModelUnavailable(
            f"The GPU's memory ran out while {what}: {meter.free / MIB:,.0f} of {meter.total / MIB:,.0f} MiB "
            f"are free; lower --max-batch-prefill-tokens, --max-batch-size or --cuda-graphs, end what else "
            f"runs there, or use a smaller model or a bigger GPU"
        ) from error


def _graphs(runner: GpuRunner, meter: Meter) -> int:
    """Return what all graphs will take, by the two biggest: the others find room in the first one's."""
    sizes = [*reversed(runner.graphs.sizes)]
    left = [_left(meter)]
    for size in sizes[:2]:
        runner.capture_size(size)
        left.append(_left(meter))
    taken = [max(before - after, 0) for before, after in pairwise(left)]
    # More than the first it takes none: what else is gone, another process has taken
    return sum(taken[:1]) + min(taken[:2], default=0) * (len(sizes) - 1)


def _left(meter: Meter) -> int:
    meter.begin()  # what the allocator keeps for later would hide what a graph has taken
    return meter.free


def _prompts(table: MirroredTable, extent: Extent, sampling: Sampling) -> list[Chunk]:
    """Return the most tokens of the most sequences, all of which get a token."""
    each = min(max(extent.tokens // extent.sequences, 1), extent.longest - 1)
    return [_chunk(table, each, sampling) for _ in range(min(extent.sequences, extent.tokens))]


def _scored(table: MirroredTable, extent: Extent) -> list[Chunk]:
    """Return a prompt of which every token's log-probability is wanted."""
    tokens = min(extent.tokens, extent.logit_rows, extent.longest - 1)
    return [_chunk(table, tokens, _BY_HOST, scored=True)]


def _chunk(table: MirroredTable, tokens: int, sampling: Sampling, *, scored: bool = False) -> Chunk:
    request = CoreRequest(
        id="",
        prompt_ids=(0,) * tokens,
        max_new_tokens=1,
        sampling=sampling,
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=scored,
    )
    sequence = Sequence(request)
    table.enter(sequence)
    taken = len(table.lengths) - table.free - 1  # sequences before it, each with as many blocks
    count = blocks_for(tokens)
    table.extend(sequence, range(taken * count, (taken + 1) * count))
    return Chunk(sequence, 0, tokens)


def _run(runner: GpuRunner, sampler: Sampler[Launched], table: MirroredTable, chunks: list[Chunk]) -> None:
    pieces = pack(table, Decodes(), chunks)
    sampler.choose(Work(pieces), runner.run(pieces))
    for chunk in chunks:
        table.leave(chunk.sequence)
