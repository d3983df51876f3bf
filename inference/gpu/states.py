"""The states of the sequences that run, on a device, for layers that keep those.

Each place has the states of all layers, side by side, so that they are copied at once. A sequence has two
places, which are read and written in turn, as on a CPU; which of them it is now only the device knows,
which may be a step ahead: it has put down of each how many tokens its state has read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inference.gpu.batch import DeviceBatch
from inference.gpu.ops import Ops
from inference.gpu.packing import upload
from inference.gpu.recurrent import Runs
from inference.kv_cache.snapshots import Move
from inference.recurrent.cache import StandIn
from inference.recurrent.modules import StateModule

_ALIGNED = 32  # numbers: a layer's part begins at a multiple, of 128 bytes
_NOTHING = -1  # is in that place


class DeviceStates:
    """All of them; they are freed with who computes over them, as the model's modules don't hold them."""

    def __init__(self, modules: Mapping[nn.Module, StateModule], ops: Ops, device: torch.device) -> None:
        self.runs: Runs | None = None  # while a step is computed
        self._ops = ops
        self._device = device
        self._modules = [*modules.values()]
        self._shapes = [[each.shape[1:] for each in module.states(1)] for module in self._modules]
        self._slots = 0
        self._told = False  # for how many slots there are to be places
        self._held = self._places = torch.empty((0, 0), device=device)
        self._parts: list[tuple[Tensor, ...]] = []  # of the places, by module
        self._make_places(0, 0)
        for index, module in enumerate(modules):
            _Part(self, index, module)

    @property
    def place_bytes(self) -> int:
        """Return what a place takes of memory."""
        return 4 * sum(_numbers(shape) for shapes in self._shapes for shape in shapes)

    def allocate(self, slots: int, snapshots: int = 0) -> None:
        """Have places for so many slots, and for states that aren't a sequence's; what was there is gone."""
        self._told = True
        self._make_places(slots, snapshots)

    def _make_places(self, slots: int, snapshots: int) -> None:
        self._parts, self._places = [], self._held  # first give back what there is
        places = torch.empty((2 * slots + snapshots, self.place_bytes // 4), device=self._device)
        at = 0
        for shapes in self._shapes:
            part = []
            for shape in shapes:
                part.append(places[:, at : at + prod(shape)].unflatten(1, shape))
                at += _numbers(shape)
            self._parts.append(tuple(part))
        self._places, self._slots = places, slots
        # One row more: a graph's padding has no place, but a slot
        self._held = torch.full((slots + 1, 2), _NOTHING, dtype=torch.int32, device=self._device)

    @contextmanager
    def during(self, batch: DeviceBatch) -> Iterator[None]:
        """Have a forward pass of the model compute a step; waits for nothing, and can be captured."""
        if not self._told and self._slots < len(batch.tables):  # a model is only tried
            self._make_places(len(batch.tables), 0)
        self.runs = self._ops.find_places(batch, self._held)
        try:
            yield
        finally:
            self.runs = None

    def compute(self, index: int, hidden: Tensor) -> Tensor:
        """Return what a module makes of a step, (1, tokens, hidden)."""
        assert self.runs is not None, "a step is being computed"
        return self._modules[index].compute(hidden, self._parts[index], self.runs)

    def rehearse(self) -> None:
        """Move a state that is nobody's each way: the first one that is somebody's waits for no compiler."""
        places = torch.zeros((3, self.place_bytes // 4), device=self._device)
        held = torch.full((1, 2), _NOTHING, dtype=torch.int32, device=self._device)
        slots, others, tokens = upload([np.array([n], dtype=np.int32) for n in (0, 2, 0)], self._device)
        for keeps in (True, False):
            self._ops.move(places, held, slots, others, tokens, keeps=keeps)

    def move(self, moves: list[Move]) -> None:
        """Copy states to where they are kept, or from there to sequences; what is queued is removed."""
        while moves:
            count = _together(moves)
            some = moves[:count]
            columns = [[each.slot for each in some], [2 * self._slots + each.place for each in some]]
            columns.append([each.tokens for each in some])
            sent = upload([np.array(each, dtype=np.int32) for each in columns], self._device)
            slots, others, tokens = sent
            self._ops.move(self._places, self._held, slots, others, tokens, keeps=some[0].keeps)
            del moves[:count]


class _Part(StandIn):
    """One module's; it doesn't hold the states, which may be freed before it is."""

    def __init__(self, states: DeviceStates, index: int, module: nn.Module) -> None:
        super().__init__(module)
        self._states = weakref.ref(states)
        self._index = index

    @property
    def steps(self) -> bool:
        """Return whether a step is being computed."""
        states = self._states()
        return states is not None and states.runs is not None

    def compute(self, given: dict[str, Any]) -> Tensor:
        """Return what is made of the first argument; the others say nothing of packed tokens."""
        states = self._states()
        assert states is not None, "a step is being computed"
        return states.compute(self._index, self.first(given))


def _together(moves: list[Move]) -> int:
    """Return how many of the first moves can be made at once: none of them waits for another."""
    slots: set[int] = set()
    places: set[int] = set()
    for count, each in enumerate(moves):
        if each.keeps != moves[0].keeps or each.slot in slots or each.place in places:
            return count
        slots.add(each.slot)
        places.add(each.place)
    return len(moves)


def _numbers(shape: torch.Size) -> int:
    """Return how many numbers a state takes of a place."""
    return -(-prod(shape) // _ALIGNED) * _ALIGNED
