"""The operations that a model on a device is made of, and who computes them: torch, or Triton's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.gpu.batch import DeviceBatch, Draws, Sampled
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.gpu.recurrent import ChannelTokens, HeadTokens, Rule, Runs, Selective, ShortKernel
from inference.gpu.wishes import Wishes
from inference.kernels.gating import Gating
from inference.kernels.reference import Attention
from inference.quantised.blocks import Blocks

Weight: TypeAlias = Tensor | Blocks  # (N, K)
Multiply = Callable[[Tensor, Weight, Tensor | None], Tensor]  # x (M, K), weight (N, K), bias (N,) to (M, N)
MultiplyGated = Callable[[Tensor, Weight, Tensor | None, str], Tensor]  # and an activation, to (M, N / 2)
# x, weight, routing, whether x (tokens, k) is to be gathered (else it is (pairs, k)), a gate. To (pairs, n)
MultiplyExperts = Callable[[Tensor, ExpertWeight, Routing, bool, Gating | None], Tensor]
_INSTALL = "install it with `pip install triton`"
_COMPILE = (
    "install a C compiler (gcc) or set CC to one, set TRITON_CACHE_DIR to a directory that can be written "
    "and executed from, and see that the driver is new enough"
)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What attention's programs are cut for: the most of all layers."""

    group: int  # heads of queries that share one of keys
    kv_heads: int
    dim: int  # of the widest keys or values
    itemsize: int  # bytes of a number
    latent: bool = False  # all of them keep latents, see `Attention`


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a linear."""

    name: str  # for a person
    multiply: Multiply


@dataclass(frozen=True, slots=True)
class GatedWay:
    """One way to compute a linear and the gate behind it."""

    name: str
    multiply: MultiplyGated


@dataclass(frozen=True, slots=True)
class ExpertWay:
    """One way to compute a linear of a mixture's experts."""

    name: str
    multiply: MultiplyExperts


class Ops(Protocol):
    """One way to compute them all.

    T tokens, H heads of D numbers, Hk of keys and values. Activations are in the model's dtype and
    sums in float32.
    """

    @property
    def captures(self) -> bool:
        """Return whether a step of decodes can be captured: nothing in it waits for the device."""

    @property
    def invariant(self) -> bool:
        """Return whether a row's bits depend on that row alone, whatever is computed beside it."""

    def tile(self, heads: HeadShape, longest: int) -> int:
        """Return how many queries of a sequence attention computes in one program, for `query_blocks`."""

    def splits(self, heads: HeadShape, sequences: int, longest: int) -> int:
        """Return into how many parts attention should cut the keys of a step of so many sequences."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return (T, h) normed and times the weight (h,), which is float32 and has any 1 + in it."""

    def add_rms_norm(
        self, x: Tensor, stream: Tensor, weight: Tensor, eps: float, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return what the stream becomes, normed, and the stream + factor * x, both (T, h)."""

    def rope_and_write(
        self,
        qkv: Tensor,  # (T, (H + 2 * Hk) * D)
        cosines: Tensor | None,  # (positions, rotary) float32, rotary <= D; None: nothing is rotated
        sines: Tensor | None,
        positions: Tensor,  # (T,) int64
        places: Tensor,  # (T,) int64; -1: not kept
        keys: Tensor,  # (blocks, PAGE, Hk, D)
        values: Tensor,
        heads: int,
        kv_heads: int,
        *,
        interleaved: bool = False,  # neighbours are rotated against each other, not halves
        query_norm: Tensor | None = None,  # (D,) float32: each head is normed before it is rotated
        key_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Return the queries (T, H, D); keys and values go into the cache."""

    def write(self, key: Tensor, value: Tensor | None, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put (T, Hk, D) and (T, Hk, Dv) into the cache, for models that rotate by their own code.

        `value`: None where it is the beginning of the key, and `values` a view of `keys`.
        """

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
    ) -> Tensor:
        """Return (T, H, Dv) of queries (T, H, D); the step's own keys and values are in the cache."""

    def multiply_heads(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return (T, H, N) of (T, H, K) and each head's own weight, (H, N, K) of any strides.

        `out`: where to, numbers of a head side by side; None: anywhere.
        """

    def gated(self, gate_up: Tensor, activation: str) -> Tensor:
        """Return activation(gate) * up, (T, I), of (T, 2 * I); "silu", "gelu_tanh" or "gelu"."""

    def gated_by(self, gate_up: Tensor, gate: Gating) -> Tensor:
        """Return (T, I) of (T, 2 * I) by a gate that may have limits, and its halves in another order."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Return (M, N) of inputs (M, K), weight (N, K) and bias (N,)."""

    def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
        """Yield other ways to compute linears with such weights, worth to be measured beside `linear`."""

    def gated_ways(self, rows: int, weight: Weight) -> Iterator[GatedWay]:
        """Yield ways to compute such a linear and the gate behind it at once."""

    def route(self, index: Tensor, experts: int) -> Routing:
        """Return which of so many experts compute which tokens, of what each (tokens, chosen) has chosen."""

    def expert_linear(
        self,
        x: Tensor,
        weight: ExpertWeight,
        routing: Routing,
        gathers: bool,
        gate: Gating | None = None,
    ) -> Tensor:
        """Return (pairs, n) in the routing's order; what no expert computes may be anything.

        `x`: tokens (tokens, k) if it `gathers` them, else pairs (pairs, k) in that order. With a gate behind
        it (pairs, n / 2).
        """

    def expert_ways(self, tokens: int, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Yield other ways to do that for so many tokens, worth to be measured."""

    def expert_forms(self, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Yield the ways in which `expert_linear` does it for two tokens and more: to be rehearsed."""

    def combine(self, found: Tensor, routing: Routing, scores: Tensor) -> Tensor:
        """Return (tokens, n): results (pairs, n), in the routing's order, times their scores, added up.

        `scores` (tokens, chosen); each token's in the order of its experts.
        """

    def find_places(self, batch: DeviceBatch, held: Tensor) -> Runs:
        """Return a step's sequences with the places of their states.

        `held` (slots, 2) int32, written: how many tokens the state in each of a slot's places has read.
        """

    def move(
        self, states: Tensor, held: Tensor, slots: Tensor, others: Tensor, tokens: Tensor, *, keeps: bool
    ) -> None:
        """Copy the states of slots (n,) that have read so many tokens (n,) to other places (n,).

        With `keeps` false the other way round. `states` (places, numbers), a slot's two being behind each
        other; `held` as in `find_places`; indices int32, all different.
        """

    def convolve(self, x: Tensor, kernel: ShortKernel, recent: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels) of (T, channels); `recent` (places, taps - 1, channels) goes on."""

    def recur(self, tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, values * value_dim); `states` (places, values, value_dim, key_dim) float32 go on."""

    def scan(self, tokens: ChannelTokens, how: Selective, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels); `states` (places, channels, keys) float32 go on."""

    def sample(self, logits: Tensor, draws: Draws) -> Sampled:
        """Choose a token of each row (R, V)."""

    def shape(self, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
        """Choose anew, in `drawn` (R, 2) of tokens and log-probabilities float64, for rows that wish it.

        There stands what `sample` has chosen of the same logits. A row that isn't finite stays.
        """


def torch_ops() -> Ops:
    """Return plain torch's: right on any device, the measure of the others."""
    from inference.gpu.torch_ops import TorchOps

    return TorchOps()


def triton_ops(*, deterministic: bool = False, overlaps: bool = True) -> Ops:
    """Return Triton's kernels and cuBLAS; raise ImportError where Triton isn't installed, or can't compile.

    `deterministic`: one tile and one order of sums for every batch, in linears too. `overlaps`: kernels,
    of all operations in this process, come up while those before them compute, where a GPU can do it.
    """
    from inference.gpu.triton_ops import TritonOps

    return TritonOps(deterministic=deterministic, overlaps=overlaps)


def choose_ops(config: EngineConfig, device: torch.device) -> Ops:
    """Return what computes on a device; raise ModelUnavailable if nothing can."""
    if device.type == "cpu":
        return torch_ops()
    if not config.native_kernels:
        if config.deterministic:
            raise ModelUnavailable("--deterministic needs Parley's own kernels: leave --native-kernels true")
        return torch_ops()
    try:
        return triton_ops(deterministic=config.deterministic, overlaps=config.overlap_kernels)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        raise ModelUnavailable(
            f"The kernels for GPUs need Triton, which can't be used here ({error}): "
            f"{_INSTALL if missing else _COMPILE}, or start with --native-kernels false, which is slower"
        ) from error
