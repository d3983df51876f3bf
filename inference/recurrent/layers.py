"""Layers that keep a state of what they have read, and no keys and values.

State-space models, linear attention and short convolutions are such layers. In transformers each is a module
that is given the model's cache, and reads and writes its part of it: which ones they are, and what they keep,
is seen in one forward pass of the model's own code.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from inference.planning.described import STATELESS_TYPES

_KINDS = ("conv_states", "recurrent_states")
_WRITERS = ("update_conv_state", "update_recurrent_state")
_PROBED = 2  # tokens: what computes a single one may be other code


@dataclass(frozen=True, slots=True)
class State:
    """One tensor that a layer keeps of each sequence."""

    kind: str  # one of _KINDS
    index: int  # a layer may have several of a kind
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Return what it takes of memory."""
        return prod(self.shape) * self.dtype.itemsize


Kept = Mapping[State, Tensor]


class KeptLayer(LinearAttentionLayer):
    """A layer's part of transformers' cache, for some sequences and one step."""

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Keep a state as it is: it is copied to where its sequence has it, and never here."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


@dataclass(frozen=True, slots=True)
class StateLayer(ABC):
    """What a module keeps."""

    states: tuple[State, ...]

    @property
    def nbytes(self) -> int:
        """Return what a sequence takes of memory."""
        return sum(each.nbytes for each in self.states)

    @property
    def recurrent(self) -> bool:
        """Return whether a state is more than the last inputs."""
        return any(each.kind != _KINDS[0] for each in self.states)

    @abstractmethod
    def run(self, own: Callable[..., Any], given: dict[str, Any], kept: Kept | None) -> tuple[Any, Kept]:
        """Return what the module makes of what its forward is given, and what it keeps then.

        `own` is its own forward, `kept` what it has kept of the sequences, (sequences, *shape) each; None:
        nothing was read of them.
        """


@dataclass(frozen=True, slots=True)
class CachedStateLayer(StateLayer):
    """A module that keeps its state in transformers' cache."""

    index: int  # of its part of the cache
    parameter: str  # of its forward, which takes the cache
    flags: Mapping[str, Mapping[int, Any]]  # what its part says of itself once it is written to
    shown: Cache = field(default_factory=lambda: Cache(layers=[]))  # the cache it is given

    def run(self, own: Callable[..., Any], given: dict[str, Any], kept: Kept | None) -> tuple[Any, Kept]:
        """Have its own code read and write its part of a cache."""
        part = self._part(kept)
        while len(self.shown.layers) <= self.index:
            self.shown.layers.append(KeptLayer())
        self.shown.layers[self.index] = part
        found = own(**{**given, self.parameter: self.shown})
        return found, {state: getattr(part, state.kind)[state.index] for state in self.states}

    def _part(self, kept: Kept | None) -> KeptLayer:
        part = KeptLayer(number_of_states=1 + max(each.index for each in self.states))
        if kept is None:
            return part
        for name, flags in self.flags.items():
            setattr(part, name, dict(flags))
        for state, value in kept.items():
            getattr(part, state.kind)[state.index] = value
            part.dtype, part.device = value.dtype, value.device
        return part


def find_state_layers(model: PreTrainedModel) -> dict[nn.Module, CachedStateLayer]:
    """Return the modules that keep a state, by layer; raise ValueError if it isn't known what one keeps."""
    cache = _EmptyCache(config=model.config.get_text_config())
    parts = {at: part for at, part in enumerate(cache.layers) if _keeps_state(part)}
    if not parts:
        return {}
    name = cache_parameter(model)
    with _noting_writers(model, cache, parts) as writers, torch.inference_mode():
        ids = torch.zeros(1, _PROBED, dtype=torch.int64, device=model.device)
        model(input_ids=ids, use_cache=True, **{name: cache})
    found: dict[nn.Module, CachedStateLayer] = {}
    types = dict(enumerate(getattr(model.config.get_text_config(), "layer_types", None) or ()))
    for at, part in parts.items():
        if not writers[at] and types.get(at) in STATELESS_TYPES:  # to transformers before 5.23 like others
            continue
        if len(writers[at]) != 1:
            raise ValueError(f"{len(writers[at])} modules keep the state of its layer {at}")
        ((module, parameter),) = writers[at].items()
        if module in found:
            raise ValueError("a module that is called twice has two states")
        found[module] = _seen(at, parameter, part)
    return found


class _EmptyCache(DynamicCache):
    """A cache of nothing yet, which says how long it is even where no layer attends: transformers' raises."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens were read."""
        return int(super().get_seq_length(layer_idx)) if self._attends else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many keys a step's mask has, and which is the first."""
        return super().get_mask_sizes(query_length, layer_idx) if self._attends else (query_length, 0)

    @property
    def _attends(self) -> bool:
        return any(isinstance(each, CacheLayerMixin) for each in self.layers)


def cache_parameter(model: PreTrainedModel) -> str:
    """Return by which argument a model is given its cache; raise ValueError if by none."""
    takes = inspect.signature(model.forward).parameters
    for name in ("past_key_values", "cache_params"):
        if name in takes:
            return name
    raise ValueError("it takes no cache")


def _keeps_state(part: object) -> bool:
    return isinstance(part, LinearAttentionCacheLayerMixin)


def _seen(at: int, parameter: str, part: Any) -> CachedStateLayer:
    states = tuple(
        State(kind, index, tuple(value.shape[1:]), value.dtype)
        for kind in _KINDS
        for index, value in getattr(part, kind).items()
        if value is not None
    )
    if not states:
        raise ValueError(f"it isn't seen what its layer {at} keeps")
    plain = vars(LinearAttentionLayer())
    flags = {
        name: dict(value)
        for name, value in vars(part).items()
        if name in plain and name not in _KINDS and isinstance(value, dict)
    }
    return CachedStateLayer(states, at, parameter, flags)


@contextmanager
def _noting_writers(
    model: nn.Module, cache: Cache, parts: Mapping[int, Any]
) -> Iterator[dict[int, dict[nn.Module, str]]]:
    """Have it noted which module writes to which part, and the parameter by which it has the cache."""
    writers: dict[int, dict[nn.Module, str]] = {at: {} for at in parts}
    having: list[tuple[nn.Module, str]] = []  # the modules that run and were given the cache

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [*inspect.signature(module.forward).parameters] if any(each is cache for each in args) else []
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        having.extend((module, name) for name, value in given.items() if value is cache)

    def leave(module: nn.Module, *_: object) -> None:
        if having and having[-1][0] is module:
            having.pop()

    def noting(at: int, write: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def note(*args: Any, **kwargs: Any) -> Tensor:
            module, name = having[-1]
            writers[at][module] = name
            return write(*args, **kwargs)

        return note

    for at, part in parts.items():
        for name in _WRITERS:
            setattr(part, name, noting(at, getattr(part, name)))
    hooks = [each.register_forward_pre_hook(enter, with_kwargs=True) for each in model.modules()]
    hooks += [each.register_forward_hook(leave, always_call=True) for each in model.modules()]
    try:
        yield writers
    finally:
        for hook in hooks:
            hook.remove()
