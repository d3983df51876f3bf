"""What kernels are told of layers that keep a state: weights, and each sequence's part of a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.kernels.state_parts import Heads

LOST = -2  # the place of a state that isn't there: better no numbers than wrong ones


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Runs:
    """The n sequences of a step, T tokens in a row; index tensors are int32."""

    starts: Tensor  # (n + 1,): where each sequence's tokens begin among the T
    reads: Tensor  # (n,): the place of its state; -1: nothing was read of it; or LOST
    writes: Tensor  # (n,): the place of its next one; -1: a graph's padding, nowhere
    blocks: Tensor  # (2, q): the sequence, and its first token, of each tile; -1: none
    tile: int  # tokens of one of these
    longest: int  # most tokens of one sequence

    @classmethod
    def of(cls, batch: DeviceBatch, reads: Tensor, writes: Tensor) -> Runs:
        """Return a step's sequences with their places."""
        return cls(
            starts=batch.starts,
            reads=reads,
            writes=writes,
            blocks=batch.query_blocks,
            tile=batch.tile,
            longest=batch.longest,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShortKernel:
    """A causal convolution of each channel by itself."""

    weight: Tensor  # (taps, channels) float32, the oldest input's first
    bias: Tensor | None  # (channels,) float32
    silu: bool  # of what comes out


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule:
    """How states of heads, (values, value_dim, key_dim) float32, go on: by the delta rule, or as Mamba 2's.

    A state stays by exp(rates * share), of softplus(steps + step_biases), and what is new comes by a share.
    """

    heads: Heads
    rates: Tensor  # (values,) float32
    step_biases: Tensor  # (values,) float32
    norm: Tensor | None = None  # (value_dim,) float32, of the delta rule's results; None: Mamba 2's
    eps: float = 0.0
    scale: float = 1.0  # the delta rule's most share
    skips: Tensor | None = None  # (values,) float32: how much of a value is added to what Mamba 2 gives
    limits: tuple[float, float] = (0.0, float("inf"))  # of Mamba 2's shares


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeadTokens:
    """What a step's T tokens say to a `Rule`; queries, keys and values begin in the rows of one tensor."""

    query: Tensor  # (T, ...)
    key: Tensor
    value: Tensor
    steps: Tensor  # (T, values)
    shares: Tensor | None = None  # (T, values), of the delta rule; None: Mamba 2's
    gates: Tensor | None = None  # (T, values * value_dim), of the delta rule


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelTokens:
    """What a step's T tokens say to `Selective` states."""

    x: Tensor  # (T, channels)
    steps: Tensor  # (T, channels)
    into: Tensor  # (T, keys): by which x goes into the state
    by: Tensor  # (T, keys): by which it comes out
    gates: Tensor  # (T, channels)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Selective:
    """How Mamba's states, (channels, keys) float32, go on."""

    rates: Tensor  # (channels, keys) float32
    step_biases: Tensor  # (channels,) float32
    skips: Tensor  # (channels,) float32
