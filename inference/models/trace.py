"""What one forward pass of a model does around its decoder layers, seen by hooks; no names of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.models.attending import attend_by, attending_by

Pair = tuple[Tensor, Tensor]  # cosines and sines


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """A call of a rotary embedding, to be repeated for other positions."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def tables(self, positions: Tensor) -> Pair:
        """Return the cosines and sines (n, rotary_dim) of positions (n,), or of (3, n) in images."""
        told = positions[None] if positions.dim() == 1 else positions[:, None]

        def other(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            # In float32 whatever the model computes in: 16 bits would round each angle's cosine and sine
            return value[:, :1].float() if value.is_floating_point() else told.to(value.device)

        keywords = {name: other(value) for name, value in self.keywords.items()}
        with torch.inference_mode():
            cosines, sines = as_pair(self.module(*map(other, self.arguments), **keywords))
        return cosines[0], sines[0]


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrace:
    """One decoder layer with what it was given and what it made of that, (tokens, hidden) each."""

    layer: nn.Module
    attention: nn.Module  # or what else mixes tokens; the layer itself: nothing does
    given: Tensor
    result: Tensor
    rope: Rope | None  # None: the layer was given no rotation
    tables: Pair | None  # the cosines and sines (tokens, rotary_dim) it was given
    arguments: tuple[Any, ...]  # all that it was given
    keywords: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A forward pass of one prompt through a model."""

    embedded: Tensor  # (tokens, hidden): what the embedding said
    layers: tuple[LayerTrace, ...]
    final: nn.Module  # is given the last layer's result, and its own result goes to the head
    normed: Tensor  # (tokens, hidden): what it made of it
    head_given: Tensor
    head_result: Tensor  # (tokens, vocabulary)
    logits: Tensor


@dataclass(slots=True)
class _Call:
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any


@dataclass(slots=True)
class _Calls:
    of: dict[nn.Module, _Call] = field(default_factory=dict)  # the last of each module
    pairs: dict[int, _Call] = field(default_factory=dict)  # those that gave two tensors, by the first's id
    ropes: dict[int, Rope] = field(default_factory=dict)  # of these, those whose result layers were given

    def rope(self, pair: Pair | Tensor) -> Rope | None:
        """Return the call that made a pair of tensors, or one of complex numbers: one object for one call."""
        first = pair if isinstance(pair, Tensor) else pair[0]
        made = self.pairs.get(id(first)) or next(filter(partial(_made, pair), self.pairs.values()), None)
        if made is None:
            return None
        result = made.result if isinstance(made.result, Tensor) else made.result[0]
        return self.ropes.setdefault(id(result), Rope(made.module, made.arguments, made.keywords))


def decoder_layers(model: nn.Module, attentions: list[nn.Module]) -> list[nn.Module] | None:
    """Return the one list of layers that holds one attention module each, in order; None if there is none."""
    paths = {module: path for path, module in model.named_modules()}
    lists = set()
    layers = []
    for attention in attentions:
        parent = _holder(model, attention, paths[attention])
        held_by, _, index = parent.rpartition(".")
        if not index.isdecimal():
            return None
        lists.add(held_by)
        layers.append(model.get_submodule(parent))
    whole = list(model.get_submodule(lists.pop()).children()) if len(lists) == 1 else None
    return layers if layers == whole else None


def lone_layers(model: nn.Module, mixers: list[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]] | None:
    """Return the one list's layers, and what mixes tokens in each: the layer itself, where nothing does."""
    paths = {module: path for path, module in model.named_modules()}
    of_layers = {paths[mixer].rpartition(".")[0]: mixer for mixer in mixers}
    lists = {path.rpartition(".")[0] for path in of_layers}
    if len(lists) != 1 or len(of_layers) != len(mixers):
        return None
    layers = list(model.get_submodule(lists.pop()).children())
    return layers, [of_layers.get(paths[layer], layer) for layer in layers]


def _holder(model: nn.Module, attention: nn.Module, path: str) -> str:
    """Return the path of what holds an attention module, and more than that: as in GPT-Neo."""
    parent = path.rpartition(".")[0]
    own = {id(each) for each in attention.modules()}
    held = {id(each) for each in model.get_submodule(parent).modules()}
    return parent.rpartition(".")[0] if parent and len(held) == len(own) + 1 else parent


def trace_model(
    model: PreTrainedModel,
    layers: list[nn.Module],
    attentions: list[nn.Module],
    prompt: NDArray[np.int64],
    first: int = 0,
) -> Trace | None:
    """Return what the model's own eager forward does with a prompt; None if its form is another one.

    `first` is the position of the prompt's first token: some layers compute otherwise far behind.
    """
    calls = _watch(model, prompt, first)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    last = calls.of.get(layers[-1])
    if last is None or head not in calls.of or embedding not in calls.of:
        return None
    final = [
        call
        for call in calls.of.values()
        if call.arguments and call.arguments[0] is _first(last.result) and call.module not in layers
    ]
    if len(final) != 1:
        return None
    traced = [_layer_trace(calls, *pair) for pair in zip(layers, attentions, strict=True)]
    return Trace(
        embedded=calls.of[embedding].result[0],
        layers=tuple(traced),
        final=final[0].module,
        normed=final[0].result[0],
        head_given=calls.of[head].arguments[0][0],
        head_result=calls.of[head].result[0],
        logits=calls.of[model].result.logits[0],
    )


def rotations(model: PreTrainedModel) -> list[Rope]:
    """Return the calls of rotary embeddings in a model's own forward pass, whatever else its form is."""
    tokens = 2
    calls = _watch(model, np.zeros(tokens, dtype=np.int64), 0)
    return [
        Rope(call.module, call.arguments, call.keywords)
        for call in calls.pairs.values()
        if _is_rotation(call, tokens)
    ]


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Have the model attend by transformers' own code meanwhile."""
    before = attending_by(model)
    attend_by(model, "eager")
    try:
        yield
    finally:
        attend_by(model, before)


def in_float32(trace: LayerTrace) -> LayerTrace:
    """Return what a float32 copy of the layer makes of the same input; the caller has attention be eager.

    What 16 bits round away, up to a hundredth of what a layer adds, would hide what it computes.
    """
    if trace.given.dtype == torch.float32:
        return trace
    layer = deepcopy(trace.layer).float()
    arguments, keywords = _widened(trace.arguments), _widened(dict(trace.keywords))
    with torch.inference_mode():
        result = _first(layer(*arguments, **keywords))[0]
    return replace(
        trace,
        layer=layer,
        given=trace.given.float(),
        result=result,
        tables=_widened(trace.tables),
        arguments=arguments,
        keywords=keywords,
    )


def _widened(value: Any) -> Any:
    """Return tensors of numbers in float32, wherever they are in tuples and dictionaries."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_widened, value))
    if isinstance(value, dict):
        return {name: _widened(each) for name, each in value.items()}
    return value


def _watch(model: PreTrainedModel, prompt: NDArray[np.int64], first: int) -> _Calls:
    calls = _Calls()

    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        call = _Call(module, arguments, keywords, result)
        calls.of[module] = call
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor):
            calls.pairs[id(result[0])] = call
        if isinstance(result, Tensor) and result.is_complex():
            calls.pairs[id(result)] = call

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in model.modules()]
    try:
        with torch.inference_mode(), eager_attention(model):
            ids = torch.from_numpy(prompt)[None].to(model.device)
            positions = torch.arange(first, first + len(prompt), device=model.device)[None]
            model(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _layer_trace(calls: _Calls, layer: nn.Module, attention: nn.Module) -> LayerTrace:
    call = calls.of[layer]
    given = call.arguments[0] if call.arguments else call.keywords["hidden_states"]
    given_all = (*call.arguments, *call.keywords.values())
    pairs = [value for value in given_all if _is_pair(value) or _is_complex(value)]
    rope = calls.rope(pairs[0]) if pairs else None
    cosines, sines = as_pair(pairs[0]) if pairs else (None, None)
    tables = (cosines[0], sines[0]) if cosines is not None and sines is not None else None
    return LayerTrace(
        layer, attention, given[0], _first(call.result)[0], rope, tables, call.arguments, call.keywords
    )


def _made(pair: Pair | Tensor, call: _Call) -> bool:
    """Return whether a pair of tensors is all of what a call gave, maybe as other views of it."""
    if isinstance(pair, Tensor) or isinstance(call.result, Tensor):
        return False
    result: tuple[Any, ...] = call.result
    views = zip(pair, result, strict=True)
    return all(
        isinstance(other, Tensor)
        and (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())
        for one, other in views
    )


def as_pair(rotations: Pair | Tensor) -> Pair:
    """Return cosines and sines; of complex numbers those by which two neighbours each are rotated."""
    if not isinstance(rotations, Tensor):
        return rotations
    cosines, sines = (part.float().repeat_interleave(2, -1) for part in (rotations.real, rotations.imag))
    return cosines, sines


def _is_complex(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_complex()


def _is_rotation(call: _Call, tokens: int) -> bool:
    """Return whether a call made two tables (1, tokens, rotary_dim) of positions."""
    given = (*call.arguments, *call.keywords.values())
    if not _is_pair(call.result) or not any(
        isinstance(each, Tensor) and not each.is_floating_point() for each in given
    ):
        return False
    one, other = call.result
    return one.shape == other.shape and one.shape[:-1] == (1, tokens) and one.is_floating_point()


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, Tensor) for each in value)


def _first(result: Any) -> Tensor:
    tensor: Tensor = result[0] if isinstance(result, tuple) else result
    return tensor
