"""What layers that keep a state are computed by on a device, over `Ops`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from inference.gpu.ops import Ops
from inference.gpu.recurrent import ChannelTokens, HeadTokens, Rule, Runs, Selective, ShortKernel
from inference.kernels.state_parts import Heads, plain

_MOST = 256  # numbers of a key, and of a value, that a program has room for


class DeviceStateKernels:
    """Makes them of a module's weights: `StateKernels`."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def computes(self, heads: Heads) -> bool:
        """Return whether recurrences of such heads are computed."""
        return max(heads.key_dim, heads.value_dim) <= _MOST and heads.values % heads.keys == 0

    def convolution(self, kernel: Tensor, bias: Tensor | None, *, silu: bool) -> DeviceConvolution:
        """Return a short convolution."""
        weight = plain(kernel.T)
        return DeviceConvolution(
            self._ops, ShortKernel(weight=weight, bias=None if bias is None else plain(bias), silu=silu)
        )

    def delta_rule(
        self, heads: Heads, *, rates: Tensor, step_biases: Tensor, norm: Tensor, eps: float, scale: float
    ) -> DeviceDeltaRule:
        """Return a gated delta rule."""
        given = {"rates": plain(rates), "step_biases": plain(step_biases), "norm": plain(norm)}
        return DeviceDeltaRule(self._ops, Rule(heads=heads, **given, eps=eps, scale=scale))

    def mamba2(
        self,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        skips: Tensor,
        limits: tuple[float, float],
    ) -> DeviceMamba2Scan:
        """Return Mamba 2's recurrence."""
        given = {"rates": plain(rates), "step_biases": plain(step_biases), "skips": plain(skips)}
        least, most = limits
        return DeviceMamba2Scan(self._ops, Rule(heads=heads, **given, limits=(float(least), float(most))))

    def mamba(self, *, rates: Tensor, step_biases: Tensor, skips: Tensor) -> DeviceMambaScan:
        """Return Mamba's recurrence."""
        given = {"rates": plain(rates), "step_biases": plain(step_biases), "skips": plain(skips)}
        return DeviceMambaScan(self._ops, Selective(**given))

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what multiplies rows with a weight."""
        return partial(self._ops.linear, weight=weight.detach(), bias=None)


class DeviceConvolution:
    """A causal convolution of each channel by itself."""

    def __init__(self, ops: Ops, kernel: ShortKernel) -> None:
        self._ops = ops
        self._kernel = kernel
        self._taps, self.channels = kernel.weight.shape

    def states(self, places: int) -> Tensor:
        """Return places for the last inputs."""
        return self._kernel.weight.new_empty(places, self._taps - 1, self.channels)

    def __call__(self, x: Tensor, states: Tensor, runs: Runs) -> Tensor:
        """Return (tokens, channels)."""
        return self._ops.convolve(_rows(x), self._kernel, states, runs)


class _Recurrence:
    def __init__(self, ops: Ops, rule: Rule) -> None:
        self._ops = ops
        self._rule = rule

    def states(self, places: int) -> Tensor:
        """Return places for states."""
        heads = self._rule.heads
        return self._rule.rates.new_empty(places, heads.values, heads.value_dim, heads.key_dim)


class DeviceDeltaRule(_Recurrence):
    """Linear attention by the gated delta rule, its results normalised and gated."""

    def __call__(
        self, x: Tensor, gates: Tensor, shares: Tensor, steps: Tensor, states: Tensor, runs: Runs
    ) -> Tensor:
        """Return (tokens, value heads * value_dim)."""
        keys = self._rule.heads.keys * self._rule.heads.key_dim
        tokens = HeadTokens(
            query=x,
            key=x[:, keys:],
            value=x[:, 2 * keys :],
            steps=_rows(steps),
            shares=_rows(shares),
            gates=_rows(gates),
        )
        return self._ops.recur(tokens, self._rule, states, runs)


class DeviceMamba2Scan(_Recurrence):
    """Mamba 2's recurrence."""

    def __call__(self, x: Tensor, steps: Tensor, states: Tensor, runs: Runs) -> Tensor:
        """Return (tokens, value heads * value_dim)."""
        heads = self._rule.heads
        values, keys = heads.values * heads.value_dim, heads.keys * heads.key_dim
        tokens = HeadTokens(query=x[:, values + keys :], key=x[:, values:], value=x, steps=_rows(steps))
        return self._ops.recur(tokens, self._rule, states, runs)


class DeviceMambaScan:
    """Mamba's recurrence, its results gated."""

    def __init__(self, ops: Ops, how: Selective) -> None:
        self._ops = ops
        self._how = how
        self.channels, self.keys = how.rates.shape

    def states(self, places: int) -> Tensor:
        """Return places for states."""
        return self._how.rates.new_empty(places, self.channels, self.keys)

    def __call__(
        self,
        x: Tensor,
        steps: Tensor,
        projected: tuple[Tensor, Tensor],
        gates: Tensor,
        states: Tensor,
        runs: Runs,
    ) -> Tensor:
        """Return (tokens, channels)."""
        into, by = projected
        tokens = ChannelTokens(
            x=_rows(x), steps=_rows(steps), into=_rows(into), by=_rows(by), gates=_rows(gates)
        )
        return self._ops.scan(tokens, self._how, states, runs)


def _rows(x: Tensor) -> Tensor:
    """Return rows whose numbers follow each other."""
    return x if x.stride(1) == 1 else x.contiguous()
