"""What a device holds of the running sequences: the slot table's mirror, written where something changed.

The device knows each sequence's newest token and its length before the host does: a step of decodes
begins with them and ends by writing the next, so that it needs nothing of the host. What the host
alone decides (pages, seeds, temperatures, `wishes`) is sent to it when it changes.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.gpu.batch import Draws
from inference.gpu.packing import upload
from inference.gpu.wishes import SlotWishes, Wishes
from inference.sampling.recipe import drawn_by_device
from inference.sequences.state import Integers, Sequence, SlotTable
from inference.types import CoreRequest, LogprobsMode

_HOTTEST = 1e30  # temperature: of a higher one float32 has no inverse but 0: removed tokens would be NaN


class MirroredTable(SlotTable):
    """A slot table that remembers what changed since its mirror was written."""

    def __init__(self, slots: int, pages: int, snapshots: int = 0) -> None:
        self._pages: dict[int, int] = {}  # place in the flat table of pages -> page
        self._entered: dict[int, Sequence] = {}  # slot -> whose it is
        super().__init__(slots, pages, snapshots)

    def enter(self, sequence: Sequence) -> None:
        """Give a sequence a slot; the caller has checked `free`."""
        super().enter(sequence)
        self.renew(sequence)

    def renew(self, sequence: Sequence) -> None:
        """Have all that the mirror has of a sequence's request written again."""
        self._entered[sequence.slot] = sequence

    def extend(self, sequence: Sequence, blocks: Several[int]) -> None:
        """Add blocks behind those that a sequence has."""
        first = sequence.slot * self.blocks.shape[1] + len(sequence.blocks)
        self._pages.update(enumerate(blocks, first))
        super().extend(sequence, blocks)

    def replace(self, sequence: Sequence, index: int, block: int) -> None:
        """Put another block in the place of one of a sequence's."""
        self._pages[sequence.slot * self.blocks.shape[1] + index] = block
        super().replace(sequence, index, block)

    @property
    def changed(self) -> bool:
        """Return whether there are `changes`."""
        return bool(self._pages or self._entered)

    def settle(self) -> None:
        """Take note that the mirror has been written."""
        self._pages, self._entered = {}, {}

    def changes(self) -> Changes:
        """Return what changed since the mirror was written."""
        pages, entered = self._pages, self._entered
        sequences = tuple(entered.values())
        requests = [sequence.request for sequence in sequences]
        samplings = [request.sampling for request in requests]
        temperatures = [min(each.temperature, _HOTTEST) if each.sample else 0.0 for each in samplings]
        warped = [request.logprobs is LogprobsMode.PROCESSED for request in requests]
        return Changes(
            places=np.array(list(pages), dtype=np.int64),
            pages=np.array(list(pages.values()), dtype=np.int32),
            slots=np.array(list(entered), dtype=np.int64),
            seeds=np.array([each.seed for each in samplings], dtype=np.uint64).view(np.int64),
            temperatures=np.array(temperatures, dtype=np.float32),
            warped=np.array(warped, dtype=np.int32),
            adapters=np.array([request.adapter for request in requests], dtype=np.int32),
            sequences=sequences,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What the host has decided since the mirror was written."""

    places: Integers  # (p,): in the flat table of pages, all different
    pages: np.ndarray[tuple[int], np.dtype[np.int32]]  # (p,)
    slots: Integers  # (s,): who has entered, all different
    seeds: Integers  # (s,): 64 bits as they stand
    temperatures: np.ndarray[tuple[int], np.dtype[np.float32]]  # (s,); 0: greedy
    warped: np.ndarray[tuple[int], np.dtype[np.int32]]  # (s,): log-probabilities are after temperature
    adapters: np.ndarray[tuple[int], np.dtype[np.int32]]  # (s,): -1: none
    sequences: tuple[Sequence, ...]  # s of them


class DeviceState:
    """The mirror: a row for each slot, and one more at the end that is nobody's, for a graph's padding."""

    def __init__(
        self, table: MirroredTable, device: torch.device, vocabulary: int = 0, *, adapts: bool = False
    ) -> None:
        """`vocabulary`: tokens that filters and penalties choose of; 0: they are the host's.

        `adapts`: the model has adapters.
        """
        slots, pages = table.blocks.shape
        self._table = table
        self.device = device
        self.padding = slots  # the row that is nobody's: its length stays 0
        self.tables = torch.zeros((slots + 1, pages), dtype=torch.int32, device=device)
        self.tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # the newest
        self.previous = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # those before them
        self.lengths = torch.zeros(slots + 1, dtype=torch.int32, device=device)  # the newest counted
        self.seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.temperatures = torch.zeros(slots + 1, dtype=torch.float32, device=device)
        self.warped = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        nobodys = torch.full((slots + 1,), -1, dtype=torch.int32, device=device)
        self.adapters = nobodys if adapts else None  # which computes them; -1: none
        self.wishes = SlotWishes(slots + 1, vocabulary, device) if vocabulary else None

    @property
    def bytes(self) -> int:
        """Return how much memory the biggest parts take."""
        return self.tables.nbytes + (0 if self.wishes is None else self.wishes.bytes)

    def chooses(self, request: CoreRequest) -> bool:
        """Return whether the device chooses all of a request's tokens."""
        return drawn_by_device(request, shapes=self.wishes is not None)

    def update(self) -> None:
        """Send what the host has decided since the last time; nothing is sent if that is nothing."""
        if not self._table.changed:
            return
        changes = self._table.changes()
        places, pages, slots, seeds, temperatures, warped, adapters = upload(
            [
                changes.places,
                changes.pages,
                changes.slots,
                changes.seeds,
                changes.temperatures.view(np.int32),
                changes.warped,
                changes.adapters,
            ],
            self.device,
        )
        if len(places):
            self.tables.view(-1)[places] = pages
        if len(slots):
            self.seeds[slots] = seeds
            self.temperatures[slots] = temperatures.view(torch.float32)
            self.warped[slots] = warped.bool()
            if self.adapters is not None:
                self.adapters[slots] = adapters
            if self.wishes is not None:
                self.wishes.enter(changes.sequences)
        self._table.settle()  # not before: what couldn't be sent is sent the next time

    def tell(self, slots: Integers, tokens: Integers, lengths: Integers) -> None:
        """Send tokens (n,) that the host has chosen, each the newest of so many in its slot."""
        at, chosen, counts = upload([slots, tokens, lengths.astype(np.int32)], self.device)
        self.tokens[at] = chosen
        self.lengths[at] = counts

    def take_back(self, sequences: Several[Sequence]) -> None:
        """Have the device know no more of sequences with slots than the host does: it went on by itself."""
        slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        lengths = self._table.lengths[slots]
        self.tell(slots, self._table.tokens[slots, lengths - 1], lengths)
        if self.wishes is not None:
            for sequence in sequences:
                self._table.renew(sequence)

    def fill_in(self, ids: Tensor, slots: Tensor) -> None:
        """Write the newest tokens of the slots (n,) over the first n of a step's ids."""
        ids[: len(slots)] = self.tokens[slots]

    def draws(self, slots: Tensor, positions: Tensor) -> Draws:
        """Return how the slots' requests (n,) choose the tokens that come to these positions (n,)."""
        return Draws(self.seeds[slots], positions, self.temperatures[slots], self.warped[slots])

    def wish(self, slots: Tensor, *, ahead: int) -> Wishes:
        """Return what the requests of slots (n,) int32 wish beyond temperature; see `Wishes.ahead`."""
        assert self.wishes is not None, "the device was made for wishes"
        return Wishes(
            slots=slots,
            table=self.wishes.table,
            marks=self.wishes.marks,
            lengths=self.lengths,
            ahead=ahead,
            seeds=self.seeds,
            temperatures=self.temperatures,
            warped=self.warped,
        )

    def keep(self, slots: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Make the tokens (n,) the newest of their slots, whose lengths were `lengths` (n,)."""
        # What may find no memory comes before what it would leave half done
        previous, behind = self.tokens[slots], (lengths + (lengths > 0)).int()  # padding's stays 0
        self.previous[slots] = previous
        self.tokens[slots] = tokens
        self.lengths[slots] = behind

    def step_back(self, slots: Tensor) -> None:
        """Undo the last `keep` of slots (n,), all of which had a length."""
        self.tokens[slots] = self.previous[slots]
        self.lengths[slots] -= 1
