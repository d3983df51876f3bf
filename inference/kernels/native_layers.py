"""All decoder layers of a step in one call into C."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.layer_checks import check_layer, norm_width, rotary_widths, rotated_width
from inference.kernels.native import Library, PackedLinear, address
from inference.kernels.native_adapters import Linears, NativeAdapter, NativeAdapters
from inference.kernels.native_attention import (
    CacheStruct,
    NativeCacheLayer,
    NativeStep,
    attention_struct,
)
from inference.kernels.native_exchange import AddUp
from inference.kernels.native_latent_layers import NativeLatentLayer
from inference.kernels.native_layer_structs import LayerStruct, ShapeStruct
from inference.kernels.native_mixture import MixtureStruct, MixtureWeights
from inference.kernels.native_per_layer import PerLayerStruct, PerLayerWeights
from inference.kernels.native_state import NativeRuns
from inference.kernels.native_state_layers import NativeStateLayer
from inference.kernels.reference import Attention

Activation = Literal["silu", "gelu_tanh", "gelu", "squared_relu", "relu", "xielu"]
_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)  # in the order of experts.h
NO_MEMORY, NOT_ADDED = -1, -3  # what C returns
_REDUCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """What all layers have in common."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # of the layer whose MLP has most
    eps: float  # of all norms
    scaling: float  # of the scores
    activation: Activation = "silu"
    rotary_dim: int | None = None  # how many numbers of a head are rotated; None: all
    interleaved: bool = False  # pairs are rotated, not halves
    softcap: float | None = None
    residual: float = 1.0  # what attention and the MLP give is multiplied by it
    centred: bool = False  # all norms subtract the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer: x += attention(norm(x)); x += mlp(norm(x)), with norms where there are weights.

    Either may be all. In parallel it is x += attention(norm(x)) + mlp(norm(x)). Norms are RMS norms in
    float32; their weights are what the normalised numbers are multiplied by (1 + w where the module says so).
    Where the shape is centred they are rows of two: weights, biases; those of queries and keys are then of
    each head.
    """

    # hidden -> (heads + 2 * kv_heads) * head_dim, or (heads + kv_heads) *: keys are values, too; None: no
    # token is mixed
    qkv: PackedLinear | None
    out: PackedLinear | None
    gate_up: PackedLinear | None  # hidden -> 2 * inner, the gates first, or inner; None: a mixture is all
    down: PackedLinear | None
    cache: NativeCacheLayer | None  # None: it doesn't attend
    state: NativeStateLayer | None = None  # what is between `qkv` and `out` in place of attention
    latent: NativeLatentLayer | None = None  # the same where its heads attend to latents
    gated: int = 0  # `qkv` has gates of what is found, behind each head's query (1), or behind all (2)
    mixture: MixtureWeights | None = None  # added to the MLP's results
    input_norm: Tensor | None = None  # (hidden,): of what attention reads
    mid_norm: Tensor | None = None  # of what the MLP reads
    attention_norm: Tensor | None = None  # of what attention gives
    mlp_norm: Tensor | None = None  # of what the MLP gives
    query_norm: Tensor | None = None  # (head_dim,): each head for itself; (heads * head_dim,): together
    key_norm: Tensor | None = None
    attended_norm: Tensor | None = None  # (heads * head_dim,): of what `out` reads
    inner_norm: Tensor | None = None  # (inner,): of what `down` reads
    window: int | None = None
    chunk: int | None = None
    scaling: float | None = None  # None: the stack's
    sinks: Tensor | None = None  # (heads,)
    slopes: Tensor | None = None  # (heads,): what a score loses by each token between query and key
    rotary: int | None = 0  # which of the step's rotary embeddings; None: no rotation
    parallel: bool = False
    rotary_dim: int | None = None  # how many numbers of its heads are rotated; None: the stack's
    borrows: bool = False  # its cache is an earlier layer's, and `qkv` is hidden -> heads * head_dim
    value_norm: Tensor | None = None  # (head_dim,)
    per_layer: PerLayerWeights | None = None
    scale: float = 1.0  # what all that it gives is multiplied by
    late_norms: bool = False  # queries and keys, each head for itself, are normalised once they are rotated
    xielu: tuple[float, float, float, float] | None = None  # the numbers of such an activation (experts.h)
    query_scales: Tensor | None = None  # (positions,): what queries are multiplied by there

    @property
    def linears(self) -> tuple[PackedLinear | None, ...]:
        """Return those to which adapters can add, in the order of layer.h."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def norms(self) -> tuple[Tensor | None, ...]:
        """Return the weights of those around attention and the MLP, in the order of layer.h."""
        return self.input_norm, self.mid_norm, self.attention_norm, self.mlp_norm


class NativeStack:
    """The decoder layers of a model, run together as one task of the library's threads.

    Each row's result depends on its own sequence alone. One step runs at a time.
    """

    def __init__(self, library: Library, layers: Sequence[LayerWeights], shape: StackShape) -> None:
        for layer in layers:
            check_layer(layer, shape)
        self.shape = shape
        self._library = library
        self._held: list[object] = list(layers)  # what the structs point to
        structs = (LayerStruct * len(layers))(*(self._struct(layer) for layer in layers))
        self._rotaries = rotary_widths(layers, shape)
        parts = [each.per_layer for each in layers if each.per_layer is not None]
        self.inputs_read = max((each.first + each.gate.n for each in parts), default=0)
        scales = [each.query_scales for each in layers if each.query_scales is not None]
        self.positions = min(map(len, scales), default=1 << 62)  # how many there can be
        self._functions = _declare(library.functions)
        self._sizes = [
            (0, 0) if linear is None else (linear.n, linear.k) for layer in layers for linear in layer.linears
        ]
        self._adapters = NativeAdapters([], len(self._sizes))
        self._fault: BaseException | None = None  # that what adds shares up has raised
        self.handle = self._functions.parley_stack_open(
            ctypes.byref(ShapeStruct.of(shape, _ACTIVATIONS.index(shape.activation))), structs, len(layers)
        )
        if not self.handle:
            raise MemoryError("No memory for a stack of layers")
        weakref.finalize(self, self._functions.parley_stack_close, self.handle).atexit = False

    def adapt(self, adapters: Sequence[Linears]) -> None:
        """Have adapters at hand, in the place of those before; steps say which of their rows they compute."""
        self.hold([self.native(each) for each in adapters])

    def native(self, adapter: Linears) -> NativeAdapter:
        """Return an adapter as this stack reads it; from any thread."""
        return NativeAdapter(adapter, self._sizes)

    def hold(self, adapters: Sequence[NativeAdapter | None]) -> None:
        """Have adapters at hand by their places, in the place of those before; not during a step."""
        held = NativeAdapters(adapters, len(self._sizes))
        self._functions.parley_stack_adapt(self.handle, held.linears, held.rank)
        self._adapters = held  # only now: C has read those before until here

    def share(self, adds_up: AddUp | Callable[[NDArray[np.float32]], None]) -> None:
        """Have layers that are a share of a model's added up, in place, with the others' after each half.

        It is a function of C or of Python. What the latter raises ends the step, and `check` raises it.
        """

        def reduce(_: object, values: ctypes._Pointer[ctypes.c_float], count: int) -> int:
            assert not isinstance(adds_up, AddUp), "it is called without Python"
            try:
                adds_up(np.ctypeslib.as_array(values, (count,)))
            except BaseException as error:  # C can't raise it
                self._fault = error
                return 1
            return 0

        own, context = _REDUCE(reduce), None
        self._held += [own, adds_up]
        function = ctypes.cast(own, ctypes.c_void_p)
        if isinstance(adds_up, AddUp):
            function, context = adds_up.function, adds_up.context
        self._functions.parley_stack_share(self.handle, function, context)

    def keep(self, runs: NativeRuns) -> None:
        """Have layers that keep a state know the next step, which the caller keeps meanwhile."""
        self._functions.parley_stack_states(self.handle, runs.address)

    def check(self, failed: int, tokens: int) -> None:
        """Raise what a call of C says has gone wrong with a step of so many tokens."""
        if failed == NO_MEMORY:
            raise MemoryError(f"No memory for a step of {tokens} tokens")
        if failed == NOT_ADDED:
            raise self._fault or EOFError("another share of the layers is gone")

    def check_adapters(self, chosen: NDArray[np.int32] | None, tokens: int) -> int | None:
        """Return where C reads each token's adapter; None if none has any."""
        if chosen is None:
            return None
        assert chosen.shape == (tokens,), "an adapter, or -1, for each of the step's tokens"
        assert chosen.dtype == np.int32, "C reads int32"
        assert chosen.flags.c_contiguous, "C reads one after the other"
        assert -1 <= chosen.min() <= chosen.max() < self._adapters.count, "it is one of those at hand"
        return address(chosen)

    def run(
        self,
        hidden: Tensor,
        cos: Tensor | Sequence[Tensor],
        sin: Tensor | Sequence[Tensor],
        step: NativeStep,
        adapters: NDArray[np.int32] | None = None,
        per_layer: Tensor | None = None,
    ) -> Tensor:
        """Return what the last layer gives, before the model's final norm.

        Shapes: hidden (tokens, hidden), cos and sin (tokens, rotary_dim) as transformers makes them,
        or one of each for every rotary embedding that the layers name; adapters (tokens,), -1 for none;
        per_layer (tokens, all layers' inputs); result (tokens, hidden).
        """
        assert hidden.shape == (step.tokens, self.shape.hidden), "a row for each of the step's tokens"
        assert step.last < self.positions, "queries are scaled at each position"
        hidden = hidden.float().contiguous()
        cosines, sines = (self._rotary(each, step.tokens) for each in (cos, sin))
        out = torch.empty_like(hidden)
        failed = self._functions.parley_stack_run(
            self._library.handle,
            self.handle,
            ctypes.byref(step.struct),
            _pointers(cosines),
            _pointers(sines),
            self.check_adapters(adapters, step.tokens),
            hidden.data_ptr(),
            out.data_ptr(),
            *self._inputs(per_layer, step.tokens),
        )
        self.check(failed, step.tokens)
        return out

    def _inputs(self, given: Tensor | None, tokens: int) -> tuple[int | None, int]:
        """Return where C reads all layers' inputs, and how many a row has."""
        if given is None:
            assert not self.inputs_read, "layers have inputs of their own"
            return None, 0
        assert len(given) == tokens, "inputs of each token"
        assert given.shape[1] >= self.inputs_read, "inputs of each layer"
        assert given.dtype is torch.float32, "C reads float32"
        assert given.is_contiguous(), "C reads one row behind the other"
        return given.data_ptr(), given.shape[1]

    def _rotary(self, given: Tensor | Sequence[Tensor], tokens: int) -> list[Tensor]:
        tensors = [given] if isinstance(given, Tensor) else list(given)
        assert len(tensors) > max(self._rotaries, default=-1), "an embedding for each that the layers name"
        assert all(tensors[at].shape == (tokens, size) for at, size in self._rotaries.items()), (
            "a rotation for each of the step's tokens"
        )
        return [each.float().contiguous() for each in tensors]

    def check_tables(self, cos: Sequence[Tensor], sin: Sequence[Tensor], last: int) -> None:
        """Assert that tables of rotations by position can be read up to position `last`."""
        named = max(self._rotaries, default=-1)
        assert len(cos) == len(sin) > named, "an embedding for each that the layers name"
        for at, size in self._rotaries.items():
            widths = cos[at].shape[1], sin[at].shape[1]
            assert widths == (size, size), "a rotation for each number that is rotated"
        for table in (*cos, *sin):
            assert table.shape[0] > last, "a rotation for each position"
            assert table.is_contiguous(), "C reads the tables"
            assert table.dtype is torch.float32, "in float32"

    def _struct(self, layer: LayerWeights) -> LayerStruct:
        scaling = self.shape.scaling if layer.scaling is None else layer.scaling
        how = Attention(scaling=scaling, window=layer.window, chunk=layer.chunk, softcap=self.shape.softcap)
        return LayerStruct(
            *(None if linear is None else ctypes.addressof(linear.struct) for linear in layer.linears),
            self._mixture(layer.mixture),
            None if layer.state is None else ctypes.addressof(layer.state.struct),
            None if layer.latent is None else ctypes.addressof(layer.latent.struct),
            *(self._hold(norm) for norm in layer.norms),
            *(self._hold(norm) for norm in (layer.query_norm, layer.key_norm)),
            *(self._hold(norm) for norm in (layer.attended_norm, layer.inner_norm)),
            *(
                0 if norm is None else norm_width(norm, self.shape)
                for norm in (layer.query_norm, layer.key_norm)
            ),
            -1 if layer.rotary is None else layer.rotary,
            layer.gated,
            layer.parallel,
            layer.late_norms,
            self._hold(layer.query_scales),
            None if layer.xielu is None else self._hold(torch.tensor(layer.xielu)),
            attention_struct(how, self._keep(layer.sinks), self._keep(layer.slopes)),
            CacheStruct() if layer.cache is None else layer.cache.struct,
            *(rotated_width(layer, self.shape), layer.borrows, 0),
            *(self._hold(layer.value_norm), self._per_layer(layer.per_layer)),
            0.0 if layer.scale == 1.0 else layer.scale,
        )

    def _per_layer(self, weights: PerLayerWeights | None) -> int | None:
        if weights is None:
            return None
        struct = PerLayerStruct.of(weights, self._hold(weights.norm))
        self._held.append(struct)
        return ctypes.addressof(struct)

    def _mixture(self, mixture: MixtureWeights | None) -> int | None:
        if mixture is None:
            return None
        struct = MixtureStruct.of(mixture, self._hold(mixture.correction))
        self._held.append(struct)
        return ctypes.addressof(struct)

    def _keep(self, weights: Tensor | None) -> Tensor | None:
        if weights is None:
            return None
        kept = weights.detach().float().contiguous()
        self._held.append(kept)
        return kept

    def _hold(self, weights: Tensor | None) -> int | None:
        kept = self._keep(weights)
        return None if kept is None else int(kept.data_ptr())


def _pointers(tensors: list[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    functions.parley_stack_open.restype = ctypes.c_void_p
    functions.parley_stack_open.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    functions.parley_stack_close.restype = None
    functions.parley_stack_close.argtypes = (ctypes.c_void_p,)
    functions.parley_stack_run.restype = ctypes.c_int
    functions.parley_stack_run.argtypes = (*(ctypes.c_void_p,) * 9, ctypes.c_int64)
    functions.parley_stack_states.argtypes = (ctypes.c_void_p,) * 2
    functions.parley_stack_share.restype = None
    functions.parley_stack_share.argtypes = (ctypes.c_void_p,) * 3
    functions.parley_stack_adapt.restype = None
    functions.parley_stack_adapt.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return functions
