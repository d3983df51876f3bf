"""The states of the sequences that run, in their slots, for layers that keep those.

A step's packed tokens come to such a layer as a row. The C extension computes it at once. The layer's own
code computes a batch of sequences of equal length: so it is called once for all sequences that go on by one
token, and once for each longer piece.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inference.kernels.native_state import NativeRuns, untouched
from inference.models.lora import Adapting
from inference.recurrent.layers import State, StateLayer
from inference.recurrent.modules import StateModule
from inference.recurrent.places import StatePlaces
from inference.sequences.state import Integers, Pieces


@dataclass(frozen=True, slots=True)
class _Call:
    """Sequences that a layer computes in one call."""

    tokens: slice | Tensor  # of the step's: one for each of many sequences, or several of a single one
    rows: Tensor  # of these, for who adds adapters' parts
    reads: Tensor | None  # the places of their states; None: nothing was read of them
    writes: Tensor  # the places of their next ones
    many: bool  # sequences of one token each

    def take(self, value: Any, size: int) -> Any:
        """Return what of an argument is the call's, if it has a row for each of the step's tokens."""
        if isinstance(value, tuple | list):
            return type(value)(self.take(each, size) for each in value)
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[:2] != (1, size):
            return value
        return self.row(value[:, self.tokens])

    def row(self, value: Tensor) -> Tensor:
        """Return (n, 1, ...) for (1, n, ...) and the other way round, if each token is another sequence's."""
        return value.transpose(0, 1) if self.many else value

    def put(self, value: Tensor, whole: Tensor) -> None:
        """Put the call's part of a result to where it belongs."""
        whole[:, self.tokens] = value


class StateCache:
    """The states of all sequences, which are part of the model's own code until the next cache is."""

    def __init__(
        self,
        layers: Mapping[nn.Module, StateLayer],
        device: torch.device,
        adapting: Adapting | None = None,
        rebuilt: Mapping[nn.Module, StateModule] | None = None,
    ) -> None:
        """`rebuilt`: of the modules, those that needn't be computed by their own code."""
        self.adapting = adapting
        self.size = 0  # tokens of the step; 0: between steps
        self.calls: list[_Call] = []  # that compute it by a module's own code
        self.runs: NativeRuns | None = None  # by which C computes it
        self._device = device
        self._parts = [
            _Rebuilt(self, module, rebuilt[module])
            if rebuilt is not None and module in rebuilt
            else _OwnCode(self, module, layer, device)
            for module, layer in layers.items()
        ]
        self._places = StatePlaces(self._parts)
        self._kinds = {type(part) for part in self._parts}

    @contextmanager
    def during(self, pieces: Pieces) -> Iterator[None]:
        """Have a forward pass of the model compute a step."""
        at = self._places.begin(pieces)
        self.size, self.calls = len(pieces.ids), []
        if _OwnCode in self._kinds:
            self.calls = self._calls(pieces, at.ends, at.reads, at.writes)
        if _Rebuilt in self._kinds:
            self.runs = NativeRuns(at.ends, at.reads, at.writes)
        try:
            yield
        finally:
            self.size, self.calls, self.runs = 0, [], None

    def _calls(self, pieces: Pieces, ends: Integers, reads: Integers, writes: Integers) -> list[_Call]:
        starts, sizes = pieces.starts, pieces.stops - pieces.starts
        alone = (sizes > 1) | (starts == 0)
        calls = []
        together = (~alone).nonzero()[0]
        if len(together):
            at, count = ends[together] - 1, len(together)
            first = int(at[0])
            row = first + count - 1 == at[-1]  # as the decoding sequences come first, in a row
            rows = torch.from_numpy(at).to(self._device)
            tokens = slice(first, first + count) if row else rows
            calls.append(_Call(tokens, rows, *self._moved(reads[together], writes[together]), many=True))
        for each in alone.nonzero()[0].tolist():
            stop, one = int(ends[each]), slice(each, each + 1)
            start = stop - int(sizes[each])
            read, write = self._moved(reads[one], writes[one])
            rows = torch.arange(start, stop, device=self._device)
            calls.append(_Call(slice(start, stop), rows, read if starts[each] else None, write, many=False))
        return calls

    def _moved(self, reads: Integers, writes: Integers) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(reads).to(self._device), torch.from_numpy(writes).to(self._device)


def put_back(modules: Iterable[nn.Module]) -> None:
    """Have modules be their own code's again, whatever cache they were part of."""
    for module in modules:
        if isinstance(vars(module).get("forward"), StandIn):
            del vars(module)["forward"]


class StandIn(ABC):
    """Stands for one module's forward until the next cache is made."""

    def __init__(self, module: nn.Module) -> None:
        put_back([module])  # from the cache before, if there was one
        self.own: Callable[..., Any] = module.forward
        self._names = [*inspect.signature(self.own).parameters]
        vars(module)["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module makes of a step's tokens, (1, tokens, ...) each."""
        if not self.steps:  # somebody else's pass
            return self.own(*args, **kwargs)
        return self.compute({**dict(zip(self._names, args, strict=False)), **kwargs})

    def first(self, given: dict[str, Any]) -> Any:
        """Return the first of the module's arguments."""
        return given[self._names[0]]

    @property
    @abstractmethod
    def steps(self) -> bool:
        """Return whether a step is being computed."""

    @abstractmethod
    def compute(self, given: dict[str, Any]) -> Any:
        """Return what the module makes of its arguments."""


class _Part(StandIn):
    """One module's states."""

    def __init__(self, cache: StateCache, module: nn.Module) -> None:
        super().__init__(module)
        self.cache = cache

    @property
    def steps(self) -> bool:
        """Return whether a step is being computed."""
        return bool(self.cache.size)

    @property
    @abstractmethod
    def places(self) -> Iterable[Tensor]:
        """Return what has the states, places first."""

    @abstractmethod
    def allocate(self, places: int) -> None:
        """Have so many places, which take memory as they are written to."""


class _OwnCode(_Part):
    """A module that is computed by its own code."""

    def __init__(self, cache: StateCache, module: nn.Module, layer: StateLayer, device: torch.device) -> None:
        super().__init__(cache, module)
        self._layer = layer
        self._device = device
        self._places: dict[State, Tensor] = {}  # (2 * slots, *shape) each

    @property
    def places(self) -> Iterable[Tensor]:
        """Return what has the states."""
        return self._places.values()

    def allocate(self, places: int) -> None:
        """Have so many places."""
        self._places = {
            state: untouched(places, *state.shape).to(self._device, state.dtype)
            for state in self._layer.states
        }

    def compute(self, given: dict[str, Any]) -> Any:
        """Return what the module's own code makes of its arguments, in several calls."""
        cache, whole = self.cache, None
        for call in cache.calls:
            found = _each(call.row, self._call(call, given))
            if len(cache.calls) == 1:
                return found
            if whole is None:
                whole = _each(lambda value: value.new_empty(1, cache.size, *value.shape[2:]), found)
            _each(call.put, found, whole)
        return whole

    def _call(self, call: _Call, given: dict[str, Any]) -> Any:
        kept, adapting = None, self.cache.adapting
        if call.reads is not None:
            kept = {state: held.index_select(0, call.reads) for state, held in self._places.items()}
        taken = {name: call.take(value, self.cache.size) for name, value in given.items()}
        with nullcontext() if adapting is None else adapting.within(call.rows):
            found, keeps = self._layer.run(self.own, taken, kept)
        for state, held in self._places.items():
            held.index_copy_(0, call.writes, keeps[state])
        return found


class _Rebuilt(_Part):
    """A module that C computes."""

    def __init__(self, cache: StateCache, module: nn.Module, rebuilt: StateModule) -> None:
        super().__init__(cache, module)
        self._rebuilt = rebuilt
        self._states: tuple[Tensor, ...] = ()

    @property
    def places(self) -> Iterable[Tensor]:
        """Return what has the states."""
        return self._states

    def allocate(self, places: int) -> None:
        """Have so many places."""
        self._states = self._rebuilt.states(places)

    def compute(self, given: dict[str, Any]) -> Any:
        """Return what C makes of the first argument; the others say nothing of packed tokens."""
        assert self.cache.runs is not None, "a step has runs"
        return self._rebuilt.compute(self.first(given), self._states, self.cache.runs)


def _each(function: Callable[..., Any], *values: Any) -> Any:
    """Return a function's result of a module's outputs, which may be several."""
    if isinstance(values[0], tuple | list):
        return tuple(_each(function, *several) for several in zip(*values, strict=True))
    return function(*values) if isinstance(values[0], Tensor) else values[0]
