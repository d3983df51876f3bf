"""The recurrences of layers that keep a state, by any kernels, and as the textbooks have them, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.kernels.native_attention import NativeStep
from inference.kernels.native_layers import NativeStack
from inference.kernels.native_state import NativeRuns
from inference.kernels.state_parts import Heads, StateKernels

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class _Narrowing:
    """Has the numbers of each token in `_tokens`."""

    _tokens: tuple[str, ...]

    def narrow(self, dtype: torch.dtype) -> None:
        """Have them in another dtype."""
        for name in self._tokens:
            setattr(self, name, getattr(self, name).to(dtype))


class Delta(_Narrowing):
    """The gated delta rule of one sequence, and its inputs."""

    _tokens = ("x", "gates", "shares", "steps")

    def __init__(self, kernels: StateKernels, heads: Heads, tokens: int, device: torch.device = CPU) -> None:
        self.heads = heads
        self.x = drawn(tokens, heads.channels)
        self.gates = drawn(tokens, heads.values * heads.value_dim, seed=1)
        self.shares, self.steps = drawn(2, tokens, heads.values, seed=2)
        self.rates = -drawn(heads.values, seed=3).exp()
        self.biases, self.norm = drawn(heads.values, seed=4), drawn(heads.value_dim, seed=5)
        rates, biases, norm = (each.to(device) for each in (self.rates, self.biases, self.norm))
        self._device = device
        self._rule = kernels.delta_rule(
            heads, rates=rates, step_biases=biases, norm=norm, eps=1e-6, scale=2.0
        )
        self.states = self._rule.states

    def __call__(self, at: slice, states: Tensor, step: Any) -> Tensor:
        """Return what comes of some of the tokens."""
        given = (self.x, self.gates, self.shares, self.steps)
        x, gates, shares, steps = (each[at].to(self._device) for each in given)
        return self._rule(x, gates, shares, steps, states, step).cpu()

    def textbook(self) -> Tensor:
        """Return what should come of all of them."""
        heads, tokens = self.heads, len(self.x)
        size = heads.keys * heads.key_dim
        group = heads.values // heads.keys
        q, k, v = self.x.double().split([size, size, heads.values * heads.value_dim], -1)
        q, k = (each.view(tokens, heads.keys, -1).repeat_interleave(group, 1) for each in (q, k))
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        v = v.view(tokens, heads.values, -1)
        decay = (self.rates.double() * torch.nn.functional.softplus(self.steps + self.biases).double()).exp()
        share = 2 * self.shares.double().sigmoid()
        state = torch.zeros(heads.values, heads.key_dim, heads.value_dim, dtype=torch.float64)
        found = []
        for t in range(tokens):
            state = state * decay[t, :, None, None]
            known = torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], share[t, :, None] * (v[t] - known))
            found.append(torch.einsum("hkv,hk->hv", state, q[t]) / heads.key_dim**0.5)
        out = torch.stack(found)
        out = self.norm * out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        gates = torch.nn.functional.silu(self.gates.double()).view(out.shape)
        return (out * gates).flatten(1)


class Scan2(_Narrowing):
    """Mamba 2's recurrence of one sequence, and its inputs."""

    _tokens = ("x", "steps")

    def __init__(self, kernels: StateKernels, heads: Heads, tokens: int, device: torch.device = CPU) -> None:
        self.heads = heads
        self.x, self.steps = drawn(tokens, heads.channels), drawn(tokens, heads.values, seed=2)
        self.rates = -drawn(heads.values, seed=3).exp()
        self.biases, self.skips = drawn(2, heads.values, seed=4)
        rates, biases, skips = (each.to(device) for each in (self.rates, self.biases, self.skips))
        self._device = device
        self._scan = kernels.mamba2(heads, rates=rates, step_biases=biases, skips=skips, limits=(0.3, 1.5))
        self.states = self._scan.states

    def __call__(self, at: slice, states: Tensor, step: Any) -> Tensor:
        """Return what comes of some of the tokens."""
        x, steps = (each[at].to(self._device) for each in (self.x, self.steps))
        return self._scan(x, steps, states, step).cpu()

    def textbook(self) -> Tensor:
        """Return what should come of all of them."""
        heads, tokens = self.heads, len(self.x)
        size = heads.keys * heads.key_dim
        v, k, q = self.x.double().split([heads.values * heads.value_dim, size, size], -1)
        group = heads.values // heads.keys
        q, k = (each.view(tokens, heads.keys, -1).repeat_interleave(group, 1) for each in (q, k))
        v = v.view(tokens, heads.values, -1)
        share = torch.nn.functional.softplus((self.steps + self.biases).double()).clamp(0.3, 1.5)
        decay = (self.rates * share).exp()
        state = torch.zeros(heads.values, heads.key_dim, heads.value_dim, dtype=torch.float64)
        found = []
        for t in range(tokens):
            new = torch.einsum("hk,hv->hkv", k[t], share[t, :, None] * v[t])
            state = state * decay[t, :, None, None] + new
            found.append(torch.einsum("hkv,hk->hv", state, q[t]) + self.skips[:, None] * v[t])
        return torch.stack(found).flatten(1)


class Scan(_Narrowing):
    """Mamba's recurrence of one sequence, and its inputs, of as many channels as there are values."""

    _tokens = ("x", "steps", "gates", "into", "by")

    def __init__(self, kernels: StateKernels, heads: Heads, tokens: int, device: torch.device = CPU) -> None:
        channels, keys = heads.values * heads.value_dim, heads.key_dim
        self.x, self.steps, self.gates = drawn(3, tokens, channels)
        self.into, self.by = drawn(2, tokens, keys, seed=1)
        self.rates = -drawn(channels, keys, seed=2).exp()
        self.biases, self.skips = drawn(2, channels, seed=3)
        rates, biases, skips = (each.to(device) for each in (self.rates, self.biases, self.skips))
        self._device = device
        self._scan = kernels.mamba(rates=rates, step_biases=biases, skips=skips)
        self.states = self._scan.states

    def __call__(self, at: slice, states: Tensor, step: Any) -> Tensor:
        """Return what comes of some of the tokens."""
        given = (self.x, self.steps, self.into, self.by, self.gates)
        x, steps, into, by, gates = (each[at].to(self._device) for each in given)
        return self._scan(x, steps, (into, by), gates, states, step).cpu()

    def textbook(self) -> Tensor:
        """Return what should come of all of them."""
        share = torch.nn.functional.softplus((self.steps + self.biases).double())
        state = torch.zeros(self.rates.shape, dtype=torch.float64)
        found = []
        for t in range(len(self.x)):
            new = (share[t] * self.x[t])[:, None] * self.into[t]
            state = state * (self.rates * share[t, :, None]).exp() + new
            found.append(state @ self.by[t].double() + self.skips * self.x[t])
        return torch.stack(found) * torch.nn.functional.silu(self.gates.double())


Recurrence = Delta | Scan2 | Scan


def run_pieces(stack: NativeStack, rows: Tensor, pieces: list[tuple[int, int, int]]) -> Tensor:
    """Return what layers make of a step: of each piece how many tokens, and the places of its states."""
    sizes, reads, writes = (np.array(each, dtype=np.int64) for each in zip(*pieces, strict=True))
    runs = NativeRuns(np.cumsum(sizes), reads, writes)
    stack.keep(runs)
    zeros = np.zeros(len(sizes), dtype=np.int64)
    step = NativeStep(zeros, sizes, zeros, np.zeros((1, 32), dtype=np.int32))
    return stack.run(rows, [], [], step)
