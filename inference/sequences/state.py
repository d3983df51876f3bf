"""What the engine holds of each sequence, and the pieces of work that one step is made of.

A running sequence has a slot: a row of the `SlotTable`, whose arrays hold all that a step needs of
it. A step that only goes on by a token each reads and writes whole columns of those arrays.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.grammar.masks import Guide
from inference.kv_cache.blocks import PAGE
from inference.kv_cache.snapshots import Beginning, Move
from inference.prompt_tops import PromptTops
from inference.sequences.sight import Sight
from inference.types import CoreRequest

Integers = NDArray[np.int64]


class Sequence:
    """A request on its way through the engine; only the engine's thread touches it.

    What it knows of its tokens is in the slot table while it has a slot, and else in itself.
    """

    def __init__(self, request: CoreRequest, guide: Guide | None = None, sight: Sight | None = None) -> None:
        self.request = request
        self.guide = guide  # there if the request has a grammar
        self.sight = sight  # there if its prompt has images
        self.id = request.id
        self.prompt_length = len(request.prompt_ids)
        self.slot = -1  # its row of the table while it runs; set by the table
        self.blocks: list[int] = []  # the cache's pages in order; set by the table
        self.digests: list[bytes] = []  # what its full blocks hold, as far as asked; set by the prefix cache
        self.published = 0  # of its blocks, those that the prefix cache knows; set by it
        self.arrival = 0  # its place among all that came; set by the scheduler
        self.preemptions = 0  # how often it had to give up its blocks; set by the scheduler
        self.cached_tokens = 0  # prompt tokens whose keys and values it found; set by the scheduler
        self.cache: object | None = None  # the runner's own, dropped together with the blocks
        self.beginning = Beginning()  # which of its states are kept; set by the prefix cache
        self.started = 0.0  # time.monotonic() of the first step; set by the stepper
        self.prompt_logprobs: list[float] = []  # of prompt tokens 1.. so far; set by the stepper
        self.prompt_top: list[PromptTops] = []  # beside them, a part for each chunk
        self.held: object | None = None  # its row of logits until its mask comes; set by the sampler
        self._table: SlotTable | None = None
        self._ids: Integers = np.array(request.prompt_ids, dtype=np.int64)

    def close(self) -> None:
        """Let go of what it holds outside the engine's books; called once, when it is forgotten."""
        for each in (self.guide, self.sight):
            if each is not None:
                each.close()

    @property
    def length(self) -> int:
        """Return how many tokens are known: prompt and generated."""
        return len(self._ids) if self._table is None else int(self._table.lengths[self.slot])

    @property
    def computed(self) -> int:
        """Return how many of these have their keys and values in the cache."""
        return 0 if self._table is None else int(self._table.computed[self.slot])

    @property
    def ids(self) -> Integers:
        """Return the tokens known so far, a view of shape (length,)."""
        return self._ids if self._table is None else self._table.tokens[self.slot, : self.length]

    @property
    def generated(self) -> int:
        """Return how many tokens were generated."""
        return self.length - self.prompt_length

    @property
    def remaining(self) -> int:
        """Return how many known tokens have no keys and values yet."""
        return self.length - self.computed

    @property
    def has_mask(self) -> bool:
        """Return whether its next token can be chosen as soon as its logits are there."""
        return self.guide is None or self.guide.ready

    @property
    def hides_eos(self) -> bool:
        """Return whether its next token may not be EOS if it can be anything else."""
        # A grammar knows no EOS in the middle of a text
        ignored = self.request.ignore_eos and self.guide is not None
        return ignored or self.generated < self.request.min_new_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Return whether prompt log-probabilities were asked for and not sent yet."""
        return self.request.prompt_logprobs and self.generated == 0

    def enter(self, table: SlotTable, slot: int) -> None:
        """Move what is known of the tokens into a slot; called by the table."""
        table.tokens[slot, : len(self._ids)] = self._ids
        table.lengths[slot] = len(self._ids)
        self._table, self.slot = table, slot

    def leave(self) -> None:
        """Keep the tokens and nothing else, as a preempted sequence does; called by the table."""
        self._ids = self.ids.copy()
        self._table, self.slot = None, -1
        self.blocks = []
        self.cache = None
        self.prompt_logprobs = []
        self.prompt_top = []
        self.held = None


class SlotTable:
    """What a step needs of the running sequences: a row for each, written where something changed."""

    def __init__(self, slots: int, pages: int, snapshots: int = 0) -> None:
        self.blocks = np.zeros((slots, pages), dtype=np.int32)  # the cache's pages of each sequence
        self.tokens: Integers = np.empty((slots, pages * PAGE), dtype=np.int64)  # memory comes as it is used
        self.lengths: Integers = np.zeros(slots, dtype=np.int64)  # tokens known
        self.computed: Integers = np.zeros(slots, dtype=np.int64)  # of these, tokens in the cache
        self.room: Integers = np.zeros(slots, dtype=np.int64)  # tokens that the pages hold
        self.limits: Integers = np.zeros(slots, dtype=np.int64)  # the length at which the text ends
        self.adapters = np.full(slots, -1, dtype=np.int32)  # by its place, which computes them; -1: none
        self.heeds_eos = np.zeros(slots, dtype=np.bool_)  # EOS alone ends the text; no grammar, not ignored
        self.sights: dict[int, Sight] = {}  # by slot: what the sequences see that see anything
        self.snapshots = snapshots  # places for states that aren't a sequence's
        self.moves: list[Move] = []  # before the next step, in this order; the runner takes them
        self._free: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Free all slots."""
        self._free = list(range(len(self.lengths) - 1, -1, -1))
        self.sights.clear()
        self.moves.clear()
        for column in (self.lengths, self.computed, self.room):
            column[:] = 0

    @property
    def free(self) -> int:
        """Return how many slots nobody has."""
        return len(self._free)

    def enter(self, sequence: Sequence) -> None:
        """Give a sequence a slot; the caller has checked `free`."""
        slot = self._free.pop()
        request = sequence.request
        sequence.enter(self, slot)
        self.computed[slot] = 0
        self.room[slot] = 0
        self.limits[slot] = sequence.prompt_length + request.max_new_tokens
        self.adapters[slot] = request.place
        self.heeds_eos[slot] = sequence.guide is None and not request.ignore_eos
        if sequence.sight is not None:
            self.sights[slot] = sequence.sight

    def leave(self, sequence: Sequence) -> None:
        """Take the slot back; the sequence's blocks are no longer its own."""
        slot = sequence.slot
        sequence.leave()
        self.lengths[slot] = self.computed[slot] = self.room[slot] = 0
        self.sights.pop(slot, None)
        self._free.append(slot)

    def extend(self, sequence: Sequence, blocks: Several[int]) -> None:
        """Add blocks behind those that a sequence has."""
        slot, count = sequence.slot, len(sequence.blocks)
        self.blocks[slot, count : count + len(blocks)] = blocks
        self.room[slot] = (count + len(blocks)) * PAGE
        sequence.blocks += blocks

    def replace(self, sequence: Sequence, index: int, block: int) -> None:
        """Put another block in the place of one of a sequence's."""
        sequence.blocks[index] = block
        self.blocks[sequence.slot, index] = block

    def append(self, slots: Integers, tokens: Integers) -> Integers:
        """Add a generated token (n,) to the sequence of each of `slots` (n,); return their lengths (n,)."""
        lengths = self.put(slots, self.lengths[slots], tokens)
        self.lengths[slots] = lengths
        return lengths

    def put(self, slots: Integers, positions: Integers, tokens: Integers) -> Integers:
        """Write tokens (n,) at the positions (n,) of those slots' sequences; return the positions behind."""
        self.tokens[slots, positions] = tokens
        return positions + 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens [start, stop) of one sequence, computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return how many tokens are computed."""
        return self.stop - self.start

    @property
    def samples(self) -> bool:
        """Return whether the step gives the sequence its next token."""
        return self.stop == self.sequence.length

    @property
    def logit_rows(self) -> int:
        """Return how many of the chunk's positions, counted from its end, need logits."""
        return self.size if self.sequence.wants_prompt_logprobs else int(self.samples)


class Decodes:
    """The sequences that go on by a token in every step, in the order in which they began to.

    What is derived of them is kept until one comes or goes.
    """

    def __init__(self) -> None:
        self._members: dict[Sequence, None] = {}
        self._sequences: tuple[Sequence, ...] | None = None  # None: to be derived again
        self._slots: Integers = np.empty(0, dtype=np.int64)
        self._rows: Integers = np.empty(0, dtype=np.int64)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence take part; it may do so already."""
        if sequence not in self._members:
            self._members[sequence] = None
            self._sequences = None

    def discard(self, sequence: Sequence) -> None:
        """Let a sequence rest if it takes part."""
        if self._members.pop(sequence, self) is None:
            self._sequences = None

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Return them all: the same object until one comes or goes."""
        if self._sequences is None:
            self._sequences = tuple(self._members)
            self._slots = np.array([sequence.slot for sequence in self._sequences], dtype=np.int64)
            self._rows = np.arange(len(self._sequences))
        return self._sequences

    @property
    def slots(self) -> Integers:
        """Return their slots (n,)."""
        return self._slots if self.sequences else self._slots[:0]

    @property
    def rows(self) -> Integers:
        """Return 0 .. n - 1."""
        return self._rows if self.sequences else self._rows[:0]


@dataclass(frozen=True, slots=True)
class Pieces:
    """One step's tokens, packed: the newest of each decoding sequence, then the chunks of prompts.

    A piece is a run of tokens of one sequence; the arrays are int64.
    """

    table: SlotTable
    decodes: tuple[Sequence, ...]  # a piece of one token each, which gives the next one
    prompts: tuple[Chunk, ...]
    slots: Integers  # (pieces,)
    starts: Integers  # (pieces,): positions, inclusive
    stops: Integers  # (pieces,): exclusive
    ids: Integers  # (tokens,)
    positions: Integers  # (tokens,)
    rows: Integers  # (rows,): which of the packed tokens need logits, rising

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Return all pieces as chunks, for who works on each by itself."""
        spans = zip(self.decodes, self.starts.tolist(), self.stops.tolist(), strict=False)
        return (*(Chunk(*span) for span in spans), *self.prompts)

    @property
    def adapters(self) -> NDArray[np.int32] | None:
        """Return which adapter computes each token (tokens,), -1 for none; None if that is so for all."""
        chosen = self.table.adapters[self.slots]
        return np.repeat(chosen, self.stops - self.starts) if (chosen >= 0).any() else None

    @property
    def sampling(self) -> tuple[Sequence, ...]:
        """Return the sequences that the step gives their next token."""
        if len(self.rows) == len(self.decodes):  # no prompt ends here
            return self.decodes
        return (*self.decodes, *(chunk.sequence for chunk in self.prompts if chunk.samples))


def pack(table: SlotTable, decodes: Decodes, prompts: Several[Chunk] = ()) -> Pieces:
    """Return a step's tokens as arrays; the sequences have slots."""
    sequences, slots = decodes.sequences, decodes.slots
    stops = table.lengths[slots]
    starts = stops - 1
    ids = table.tokens[slots, starts]
    if not prompts:
        return Pieces(table, sequences, (), slots, starts, stops, ids, starts, decodes.rows)
    bounds = np.array([(c.sequence.slot, c.start, c.stop) for c in prompts], dtype=np.int64).T
    ends = len(sequences) + np.cumsum(bounds[2] - bounds[1])
    rows = [np.arange(end - c.logit_rows, end) for end, c in zip(ends, prompts, strict=True)]
    return Pieces(
        table,
        sequences,
        tuple(prompts),
        np.concatenate([slots, bounds[0]]),
        np.concatenate([starts, bounds[1]]),
        np.concatenate([stops, bounds[2]]),
        np.concatenate([ids, *(c.sequence.ids[c.start : c.stop] for c in prompts)]),
        np.concatenate([starts, *(np.arange(c.start, c.stop) for c in prompts)]),
        np.concatenate([decodes.rows, *rows]),
    )
