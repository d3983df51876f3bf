"""What layers that keep a state are computed by, whoever computes it: the C extension, or a GPU's kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a recurrence; a key head serves several value heads that follow each other."""

    keys: int
    values: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        """Return how many numbers a token's queries, keys and values are."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim


class Convolution(Protocol):
    """A causal convolution of each channel by itself, with what each sequence's last inputs were."""

    @property
    def channels(self) -> int:
        """Return how many numbers a token has."""

    def states(self, places: int) -> Tensor:
        """Return so many places for states, places first."""

    def __call__(self, x: Tensor, states: Tensor, runs: Any) -> Tensor:
        """Return (tokens, channels) of a step's (tokens, channels), whose rows may lie apart."""


class DeltaRule(Protocol):
    """Linear attention by the gated delta rule, its results normalised and gated."""

    def states(self, places: int) -> Tensor:
        """Return so many places for states, places first."""

    def __call__(
        self, x: Tensor, gates: Tensor, shares: Tensor, steps: Tensor, states: Tensor, runs: Any
    ) -> Tensor:
        """Return (tokens, value heads * value_dim) of a step's rows.

        `x` (tokens, channels): queries, keys and values, behind each other; `gates` as the result; `shares`
        and `steps` (tokens, value heads).
        """


class Mamba2Scan(Protocol):
    """Mamba 2's recurrence."""

    def states(self, places: int) -> Tensor:
        """Return so many places for states, places first."""

    def __call__(self, x: Tensor, steps: Tensor, states: Tensor, runs: Any) -> Tensor:
        """Return (tokens, value heads * value_dim) of a step's rows.

        `x` (tokens, channels): values, keys and queries, behind each other; `steps` (tokens, value heads).
        """


class MambaScan(Protocol):
    """Mamba's recurrence, its results gated."""

    @property
    def channels(self) -> int:
        """Return how many numbers a token has."""

    @property
    def keys(self) -> int:
        """Return how many numbers are kept of each."""

    def states(self, places: int) -> Tensor:
        """Return so many places for states, places first."""

    def __call__(
        self,
        x: Tensor,
        steps: Tensor,
        projected: tuple[Tensor, Tensor],
        gates: Tensor,
        states: Tensor,
        runs: Any,
    ) -> Tensor:
        """Return (tokens, channels) of a step's rows: `x`, `steps` and `gates` of the same shape.

        `projected` (tokens, keys) each: by which they go into the state, and come out of it.
        """


class StateKernels(Protocol):
    """What makes them of a module's weights; what is told of a step (`runs`) is of their own kind."""

    def computes(self, heads: Heads) -> bool:
        """Return whether recurrences of such heads are computed."""

    def convolution(self, kernel: Tensor, bias: Tensor | None, *, silu: bool) -> Convolution:
        """`kernel` (channels, taps), the oldest input's first; `bias` (channels)."""

    def delta_rule(
        self,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        norm: Tensor,
        eps: float,
        scale: float,
    ) -> DeltaRule:
        """`rates`, `step_biases` (value heads), `norm` (value_dim); shares are between 0 and `scale`.

        A state stays by exp(rates * softplus(steps + step_biases)).
        """

    def mamba2(
        self,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        skips: Tensor,
        limits: tuple[float, float],
    ) -> Mamba2Scan:
        """`rates`, `step_biases`, `skips` (value heads); `limits` of softplus(steps + step_biases)."""

    def mamba(self, *, rates: Tensor, step_biases: Tensor, skips: Tensor) -> MambaScan:
        """`rates` (channels, keys), `step_biases` and `skips` (channels)."""

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what multiplies rows with a weight (outputs, inputs)."""


def plain(values: Tensor) -> Tensor:
    """Return weights as kernels take them: in float32, one behind the other."""
    return values.detach().float().contiguous()
