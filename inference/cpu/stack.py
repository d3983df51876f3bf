"""A whole model of layers of known shapes on the C extension: the level `fused`.

The model's own code is traced once. Each layer is rebuilt from its parts and compared with what
the trace saw it do; what is around the layers (a factor on the embedding, the last norm, a factor
or a cap on the logits) is read off the trace too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.cpu.finding import find_layers
from inference.cpu.native_cache import step_of
from inference.cpu.packed import Packs
from inference.cpu.rebuilt import Builder, Layer
from inference.kernels.native import Library
from inference.kernels.native_adapters import Linears as AdapterLinears
from inference.kernels.native_adapters import LowRank, NativeAdapter
from inference.kernels.native_attention import NativeStep, arrays_of, cache_layers
from inference.kernels.native_layers import LayerWeights, NativeStack
from inference.kernels.native_model import Logits, NativeModel
from inference.kernels.native_state import NativeRuns
from inference.kernels.native_state_layers import NativeStateLayer, StateWeights
from inference.machine import trimming
from inference.models.anatomy import read_model
from inference.models.ends import Ends
from inference.models.layers import LAYER_LINEARS, OtherShape
from inference.models.linears import NativeLinear, Packed
from inference.models.lora import Adapters, fixed_linears
from inference.models.mixtures import read_mixture
from inference.models.paged import Probed
from inference.models.replaced import replace_ids
from inference.models.rotary import RopeTable, make_table
from inference.models.trace import Pair, Rope
from inference.recurrent.fusing import mixers_of
from inference.recurrent.modules import StateModule
from inference.recurrent.places import StatePlaces
from inference.sampling.rows import Statistics, statistics
from inference.sequences.seen import Seen, seen_in
from inference.sequences.state import Pieces

if TYPE_CHECKING:
    from inference.shards.group import Group

Rotations = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # cosines and sines of each rotary embedding


class FusedModel:
    """The model's weights, rearranged."""

    def __init__(
        self,
        model: nn.Module,
        library: Library,
        layers: list[Layer],
        ends: Ends,
        positions: int,
        group: Group | None = None,
    ) -> None:
        self._model = model
        self._library = library
        self._layers = layers
        self._ends = ends
        self._positions = positions
        self._group = group
        self._held: list[NativeAdapter | None] = []  # adapters by their places, in all stacks that there are
        self._stacks: WeakSet[NativeStack] = WeakSet()
        self.fixed = fixed_linears(model, [layer.parts for layer in layers])

    def make_runner(
        self,
        blocks: int,
        kv_dtype: torch.dtype,
        adapters: Adapters | None = None,
        *,
        trims: bool = True,
    ) -> FusedRunner:
        """Return what computes the model's steps; its KV cache has so many blocks of float32 or bfloat16.

        Where all linears round what they read, attention over a cache in bfloat16 does, too. `trims`: the
        last layer is computed only of what logits or other tokens' attention depend on.
        """
        ropes: list[tuple[Rope, str]] = []
        weights: list[LayerWeights] = []
        keeping = [layer for layer in self._layers if layer.keeps]
        shapes = [layer.probed.shape for layer in keeping if layer.probed is not None]
        rounded = all(linear.packed.rounds for linear in self._rounding)
        caches = cache_layers(self._library, shapes, blocks, kv_dtype, rounded=rounded)
        kept = [NativeStateLayer(each) for each in self._states]
        by_module = {layer.mixer: cache for layer, cache in zip(keeping, caches, strict=True)}
        places, first = iter(kept), 0
        for layer in self._layers:
            past = by_module.get(layer.keeper) if layer.parts.state is None else next(places)
            if layer.rope is not None and layer.rope not in ropes:
                ropes.append(layer.rope)
            rotary = None if layer.rope is None else ropes.index(layer.rope)
            weights.append(layer.weights(past, rotary, first))
            own = layer.parts.per_layer
            first += 0 if own is None else own.size
        inner = max(layer.shape.inner for layer in self._layers)
        activated = (layer for layer in self._layers if layer.parts.gate_up is not None)
        activation = next(activated, self._layers[0]).shape.activation
        attending = (layer for layer in self._layers if layer.probed is not None)
        rotated = (layer for layer in self._layers if layer.rope is not None)
        shape = next(rotated, next(attending, self._layers[0])).shape
        stack = NativeStack(self._library, weights, replace(shape, inner=inner, activation=activation))
        if self._group is not None:
            stack.share(self._group.adds_up)
        if adapters is not None:
            if not self._held:
                found = adapters.of_layers(self._model, [layer.parts for layer in self._layers])
                self._held = [stack.native(self._low_ranks(each)) for each in found]
            stack.hold(self._held)
        self._stacks.add(stack)
        model = NativeModel(self._library, stack, self._ends.weights, trims=trims)
        tables = [make_table(*each, self._positions) for each in ropes]
        arrays = arrays_of(caches)
        states = FusedStates(kept, stack) if kept else None
        adapts = adapters is not None
        return FusedRunner(self._library, model, tables, self._ends, arrays, states, adapts=adapts)

    @property
    def _states(self) -> list[StateWeights]:
        """Return what keeps a state, layer by layer."""
        return [each.parts.state for each in self._layers if each.parts.state is not None]

    def native(self, low_ranks: dict[str, LowRank]) -> NativeAdapter:
        """Return an adapter as the model's stacks read it; from any thread, once there is a runner."""
        (found,) = Adapters(("",), (low_ranks,)).of_layers(self._model, [each.parts for each in self._layers])
        return next(iter(self._stacks)).native(self._low_ranks(found))

    def hold(self, place: int, adapter: NativeAdapter | None) -> None:
        """Have an adapter, or none any more, in a place of all runners' stacks; not during a step."""
        self._held += [None] * (place + 1 - len(self._held))
        self._held[place] = adapter
        for stack in self._stacks:
            stack.hold(self._held)

    def _low_ranks(self, linears: AdapterLinears) -> AdapterLinears:
        """Return what an adapter adds to the linears, layer by layer."""
        each = [linears[first : first + LAYER_LINEARS] for first in range(0, len(linears), LAYER_LINEARS)]
        pairs = zip(self._layers, each, strict=True)
        return [linear for layer, own in pairs for linear in layer.low_ranks(own)]

    def screen_head(self) -> None:
        """Have the likeliest tokens found by a coarse copy of the head, if nothing else is asked for."""
        self._ends = self._ends.screened()

    def undo(self) -> None:
        """Put the model's own linears back; of a share nothing can be."""
        if self._group is not None:
            return
        for layer in self._layers:
            layer.undo()
        self._ends.undo()

    @property
    def packed(self) -> list[Packed]:
        """Return all packed linears."""
        layers = [layer.packed for layer in self._layers if layer.packed is not None]
        routers = (each.mixture.router for each in layers if each.mixture is not None)
        products = (each.latents.products for each in layers if each.latents is not None)
        kept = (linear for layer in self._layers for _, linear in layer.parts.kept)
        return [*self._rounding, *routers, *products, *kept]

    @property
    def _rounding(self) -> list[NativeLinear]:
        """Return those that may be rounded."""
        layers = [layer.packed for layer in self._layers if layer.packed is not None]
        mixtures = [layer.mixture.packed for layer in layers if layer.mixture is not None]
        latents = [layer.latents.linears for layer in layers if layer.latents is not None]
        inputs = [] if self._ends.inputs is None else [self._ends.inputs]
        linears = [*((*each.linears, *each.per_layer) for each in layers), *mixtures, *latents]
        return [self._ends.head, *inputs, *chain.from_iterable(linears)]


class FusedStates:
    """The states of all sequences, and a stack that is told where a step's are."""

    def __init__(self, layers: list[NativeStateLayer], stack: NativeStack) -> None:
        self._places = StatePlaces(layers)
        self._stack = stack
        self._runs: NativeRuns | None = None  # which C reads

    def begin(self, pieces: Pieces) -> None:
        """Take the step that is computed next."""
        at = self._places.begin(pieces)
        self._runs = NativeRuns(at.ends, at.reads, at.writes)
        self._stack.keep(self._runs)


class FusedRunner:
    """Runs all pieces of a step through the C extension."""

    def __init__(
        self,
        library: Library,
        model: NativeModel,
        ropes: list[RopeTable],
        ends: Ends,
        arrays: tuple[Tensor, ...],
        states: FusedStates | None = None,
        *,
        adapts: bool = False,
    ) -> None:
        """`arrays` are the cache's, blocks first; `states`: of its layers that keep one."""
        self.arrays = arrays
        self._library = library
        self._model = model
        self._adapts = adapts
        self._states = states
        self._ropes = ropes
        self._ends = ends
        known, replaced = np.arange(model.vocabulary), ends.bare.replaced
        self._taken = replace_ids(known, replaced) if replaced else None  # the id that each is taken for
        self._reach = -1  # the last position that the tables of rotations have
        self._rotations: Rotations = ((), ())
        self._last: Logits | None = None  # as far as their statistics are those of what `run` returned
        self._step: NativeStep | None = None  # the last one

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32; with `tokens_only` they mean nothing.

        The likeliest tokens are then what `statistics` says of them, and their log-probabilities are 0.
        """
        step = self._step = self._step_of(pieces)
        seen = seen_in(pieces)
        spatial = None if seen is None else seen.positions
        cosines, sines = self._upto(step.last) if spatial is None else self._at(spatial)
        self._last = None  # its memory is free for the next
        if self._states is not None:
            self._states.begin(pieces)
        finishes = self._ends.finishes
        logits = self._model.run(
            *(self._ids(pieces, seen), pieces.rows, cosines, sines, step),
            pieces.adapters if self._adapts else None,
            statistics=not finishes,
            tokens_only=tokens_only,
            given=None if seen is None else seen.rows,
            by_row=spatial is not None,
        )
        if finishes:
            with torch.inference_mode():
                return self._ends.finish(logits.values)
        self._last = logits
        return logits.values

    def _step_of(self, pieces: Pieces) -> NativeStep:
        """Return a step as C takes it: the last one, moved on, if the same sequences do nothing but decode.

        Their slots are others as soon as sequences or prompts come or go. Guesses change how many tokens
        there are.
        """
        step, tokens = self._step, len(pieces.ids)
        if step is None or pieces.slots is not step.slots or not step.tokens == tokens == len(pieces.slots):
            return step_of(pieces)
        step.move(pieces.starts, pieces.stops)
        return step

    def _ids(self, pieces: Pieces, seen: Seen | None) -> NDArray[np.int64]:
        """Return the step's tokens, those that stand for an image's rows numbered behind the vocabulary."""
        ids = pieces.ids if self._taken is None else self._taken[pieces.ids]
        if seen is None or seen.rows is None:
            return ids
        ids = ids.copy()
        ids[seen.at] = self._model.vocabulary + np.arange(len(seen.at))
        return ids

    def _upto(self, last: int) -> Rotations:
        """Return tables of rotations up to a position at least."""
        if last > self._reach:
            self._extend(last)
        return self._rotations

    @torch.inference_mode()
    def _extend(self, last: int) -> None:
        self._rotations = _columns([rope.upto(last) for rope in self._ropes])
        self._reach = min((len(cosines) for cosines in self._rotations[0]), default=1 << 62) - 1

    @torch.inference_mode()
    def _at(self, positions: NDArray[np.int64]) -> Rotations:
        """Return the rotations of each of a step's tokens by their positions (3, tokens)."""
        return _columns([rope.at(torch.from_numpy(positions)) for rope in self._ropes])

    def statistics(self, scores: Tensor) -> Statistics:
        """Return the statistics of scores (n, v), which are known of what `run` returned last."""
        if self._last is None or scores is not self._last.values:
            return statistics(scores, self._library)
        _, tokens, best, totals = self._last
        return Statistics(tokens.copy(), best.astype(np.float64), totals.astype(np.float64))


def _columns(pairs: list[Pair]) -> Rotations:
    return tuple(cosines for cosines, _ in pairs), tuple(sines for _, sines in pairs)


def fuse_model(
    model: PreTrainedModel,
    probed: dict[nn.Module, Probed],
    library: Library,
    packs: Packs,
    prompt: NDArray[np.int64],
    positions: int,
    adapted: Collection[str] = (),
    states: Mapping[nn.Module, StateModule] = MappingProxyType({}),
) -> FusedModel:
    """Rebuild a model whose layers are of known shapes; raise OtherShape, with the model as it was.

    `positions`: how many there can be; layers are compared at the last of them. `adapted`: the linears that
    adapters add to. `states`: its modules that keep a state.
    """
    # Experts can't be divided among processes
    mixture_in = read_mixture if packs.group is None else lambda _: None
    anatomy = read_model(model, probed, prompt, positions, mixture_in, mixers_of(states, packs.routers))
    for path in fixed_linears(model, anatomy.parts).intersection(adapted):
        raise OtherShape(
            f"an adapter adds to `{path}`, by which experts are chosen, gates made, states read or latents "
            "multiplied"
        )
    builders = [
        Builder(library, packs, each, part, probed.get(each.attention))
        for each, part in zip(anatomy.layers, anatomy.parts, strict=True)
    ]
    # What a final form rounds can't be taken back: nothing is changed until all layers are known to have
    # the shape. Where it is exact each layer is packed as it is found, as both forms of a model may not fit.
    found = trimming(find_layers(builders))
    layers: Iterable[Layer] = list(found) if packs.exact is not None else found
    built: list[Layer] = []
    share = None if packs.group is None else packs.group.share
    try:
        for builder, layer in trimming(zip(builders, layers, strict=True)):
            built.append(builder.pack(layer))
        ends = anatomy.ends.pack(packs.final, share)
    except Exception:
        for layer in built:
            layer.undo()
        raise
    return FusedModel(model, library, built, ends, positions, packs.group)
