"""Modules that keep a state, computed by the kernels for those but for their linears.

What a module is, is told by what it is made of: gated delta nets (Yang et al. 2024, arXiv:2412.06464) with
their linears apart, as OLMo Hybrid's, merged by kind, as Qwen3.5's, or by head, as Qwen3-Next's; Mamba
(Gu, Dao 2023, arXiv:2312.00752), as in Jamba, and Mamba 2 (Dao, Gu 2024, arXiv:2405.21060), as in Granite's,
Nemotron's and Falcon's hybrids; and short convolutions between two gates, as LFM2's. Whether it is that is
seen when the model's logits are compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from inference.kernels.state_parts import Convolution, DeltaRule, Heads, Mamba2Scan, MambaScan, StateKernels

_Projected = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k and v in a row; gates; shares; steps

_SILU = {"silu", "swish"}  # names of one activation
_NORMS = {"dt_layernorm", "b_layernorm", "c_layernorm"}  # of some of Mamba's


class StateModule(ABC):
    """A module that computes a whole step of packed tokens at once."""

    replaced: tuple[nn.Module, ...] = ()  # linears whose weights only its own code would need

    @abstractmethod
    def states(self, places: int) -> tuple[Tensor, ...]:
        """Return so many places for states, places first."""

    @abstractmethod
    def compute(self, hidden: Tensor, states: tuple[Tensor, ...], runs: Any) -> Tensor:
        """Return (1, tokens, hidden) of a step's (1, tokens, hidden)."""


def rebuild(modules: Iterable[nn.Module], kernels: StateKernels) -> dict[nn.Module, StateModule]:
    """Return those of the modules that the kernels can compute, as what they compute."""
    found = {module: _rebuilt(module, kernels) for module in modules}
    return {module: each for module, each in found.items() if each is not None}


def _rebuilt(module: nn.Module, kernels: StateKernels) -> StateModule | None:
    try:
        kinds = (DeltaNet, Mamba2, Mamba, ShortConvolution)
        return next(filter(None, (kind.of(module, kernels) for kind in kinds)), None)
    except AttributeError:  # it has some of the parts and no others
        return None


class DeltaNet(StateModule):
    """Linear attention by the gated delta rule, behind a short convolution."""

    def __init__(
        self, project: Callable[[Tensor], _Projected], convolve: Convolution, rule: DeltaRule, out: _Linear
    ) -> None:
        self._project = project
        self.convolve = convolve
        self.rule = rule
        self._out = out

    @classmethod
    def of(cls, module: Any, kernels: StateKernels) -> DeltaNet | None:
        """Return what a module computes; None if it is none of these. Raises AttributeError."""
        project = _projection(module)
        if project is None:
            return None
        norm = module.norm if hasattr(module, "norm") else module.o_norm
        heads = Heads(module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim)
        convolve = _convolution_of(module, heads, kernels)
        if convolve is None or norm.activation not in _SILU:
            return None
        rule = kernels.delta_rule(
            heads,
            rates=-module.A_log.detach().float().exp(),
            step_biases=module.dt_bias,
            norm=norm.weight,
            eps=norm.variance_epsilon,
            scale=2.0 if getattr(module, "allow_neg_eigval", False) else 1.0,
        )
        return cls(project, convolve, rule, _Linear(module, "out_proj", "o_proj"))

    def states(self, places: int) -> tuple[Tensor, ...]:
        """Return places for the last inputs of the convolution, and for what the rule keeps."""
        return self.convolve.states(places), self.rule.states(places)

    def compute(self, hidden: Tensor, states: tuple[Tensor, ...], runs: Any) -> Tensor:
        """Return what the module makes of a step."""
        recent, kept = states
        mixed, gates, shares, steps = self._project(hidden)
        attended = self.rule(self.convolve(mixed, recent, runs), gates, shares, steps, kept, runs)
        return self._out(attended[None])


class Mamba2(StateModule):
    """A selective state space with a scalar for each head, behind a short convolution."""

    def __init__(self, module: Any, heads: Heads, convolve: Convolution, scan: Mamba2Scan) -> None:
        self._module = module
        self._heads = heads
        self.convolve = convolve
        self.scan = scan
        self._into, self._out = _Linear(module, "in_proj"), _Linear(module, "out_proj")
        self.norms = getattr(module, "mamba_rms_norm", True)

    @classmethod
    def of(cls, module: Any, kernels: StateKernels) -> Mamba2 | None:
        """Return what a module computes; None if it is none of these. Raises AttributeError."""
        names = {name for name, _ in module.named_children()} - {"act"}
        if names != {"in_proj", "conv1d", "norm", "out_proj"} or not hasattr(module, "ssm_state_size"):
            return None
        heads = Heads(module.n_groups, module.num_heads, module.ssm_state_size, module.head_dim)
        convolve = _convolution_of(module, heads, kernels)
        if convolve is None:
            return None
        scan = kernels.mamba2(
            heads,
            rates=-module.A_log.detach().float().exp(),
            step_biases=module.dt_bias,
            skips=module.D,
            limits=module.time_step_limit,
        )
        return cls(module, heads, convolve, scan)

    def states(self, places: int) -> tuple[Tensor, ...]:
        """Return places for the last inputs of the convolution, and for what the scan keeps."""
        return self.convolve.states(places), self.scan.states(places)

    def compute(self, hidden: Tensor, states: tuple[Tensor, ...], runs: Any) -> Tensor:
        """Return what the module makes of a step."""
        (recent, kept), heads = states, self._heads
        inner = heads.values * heads.value_dim
        projected = self._multiplied(hidden)[0]
        gates, mixed, steps = projected.split([inner, heads.channels, heads.values], dim=-1)
        scanned = self.scan(self.convolve(mixed, recent, runs), steps, kept, runs)
        if self.norms:
            return self._out(self._module.norm(scanned[None], gates[None]))
        return self._out((scanned * nn.functional.silu(gates))[None])

    @property
    def multiplies(self) -> bool:
        """Return whether there are factors around the first linear."""
        names = ("ssm_in_multiplier", "mup_vector")
        return any(getattr(self._module, name, None) is not None for name in names)

    def _multiplied(self, hidden: Tensor) -> Tensor:
        """Return what the first linear makes, with the factors that Falcon-H1 has."""
        before, behind = (getattr(self._module, name, None) for name in ("ssm_in_multiplier", "mup_vector"))
        projected = self._into(hidden if before is None else hidden * before)
        return projected if behind is None else projected * behind


class Mamba(StateModule):
    """A selective state space with numbers for each channel, behind a short convolution."""

    def __init__(self, module: Any, kernels: StateKernels, convolve: Convolution, scan: MambaScan) -> None:
        self._module = module
        self.convolve = convolve
        self.scan = scan
        self._into, self._out = _Linear(module, "in_proj"), _Linear(module, "out_proj")
        self._projects = _Linear(module, "x_proj")
        self.replaced = (module.dt_proj,)  # it isn't called
        self._widen = kernels.linear(module.dt_proj.weight)

    @classmethod
    def of(cls, module: Any, kernels: StateKernels) -> Mamba | None:
        """Return what a module computes; None if it is none of these. Raises AttributeError."""
        names = {name for name, _ in module.named_children()} - {"act"}
        if names - _NORMS != {"in_proj", "conv1d", "x_proj", "dt_proj", "out_proj"}:
            return None
        convolve = _convolution(module.conv1d, kernels, silu=True)
        if module.activation not in _SILU or convolve is None or module.dt_proj.bias is None:
            return None
        scan = kernels.mamba(
            rates=-module.A_log.detach().float().exp(),
            step_biases=module.dt_proj.bias,
            skips=module.D,
        )
        return cls(module, kernels, convolve, scan) if scan.channels == convolve.channels else None

    def states(self, places: int) -> tuple[Tensor, ...]:
        """Return places for the last inputs of the convolution, and for what the scan keeps."""
        return self.convolve.states(places), self.scan.states(places)

    def compute(self, hidden: Tensor, states: tuple[Tensor, ...], runs: Any) -> Tensor:
        """Return what the module makes of a step; raise ValueError if an adapter adds to what is read."""
        module, (recent, kept), keys = self._module, states, self.scan.keys
        if module.dt_proj not in self.replaced:
            raise ValueError("the weight of `dt_proj` is read, so nothing can be added to what it makes")
        values, gates = self._into(hidden)[0].chunk(2, dim=-1)
        x = self.convolve(values, recent, runs)
        projected = self._projects(x[None])[0]
        times, into, by = projected.split([projected.shape[-1] - 2 * keys, keys, keys], dim=-1)
        if hasattr(module, "dt_layernorm"):
            times, into, by = module.dt_layernorm(times), module.b_layernorm(into), module.c_layernorm(by)
        return self._out(self.scan(x, self._widen(times), (into, by), gates, kept, runs)[None])


class ShortConvolution(StateModule):
    """A short convolution of what one gate lets in; another one is behind it."""

    def __init__(self, into: _Linear, convolve: Convolution, out: _Linear) -> None:
        self._into = into
        self.convolve = convolve
        self._out = out

    @classmethod
    def of(cls, module: Any, kernels: StateKernels) -> ShortConvolution | None:
        """Return what a module computes; None if it is none of these. Raises AttributeError."""
        if {name for name, _ in module.named_children()} != {"in_proj", "conv", "out_proj"}:
            return None
        convolve = _convolution(module.conv, kernels, silu=False)
        if convolve is None or module.in_proj.weight.shape[0] != 3 * convolve.channels:
            return None
        return cls(_Linear(module, "in_proj"), convolve, _Linear(module, "out_proj"))

    def states(self, places: int) -> tuple[Tensor, ...]:
        """Return places for the last inputs of the convolution."""
        return (self.convolve.states(places),)

    def compute(self, hidden: Tensor, states: tuple[Tensor, ...], runs: Any) -> Tensor:
        """Return what the module makes of a step."""
        before, behind, value = self._into(hidden)[0].chunk(3, dim=-1)
        return self._out((behind * self.convolve(before * value, states[0], runs))[None])


class _Linear:
    """A module's linear, whatever computes it when it is called."""

    def __init__(self, parent: nn.Module, *names: str) -> None:
        """`names`: what it may be called; raises AttributeError if it isn't there."""
        self._parent = parent
        self._name = next((name for name in names if hasattr(parent, name)), names[0])
        parent.get_submodule(self._name)

    def __call__(self, given: Tensor) -> Tensor:
        result: Tensor = self._parent.get_submodule(self._name)(given)
        return result


def _projection(module: Any) -> Callable[[Tensor], _Projected] | None:
    """Return what a gated delta net makes of its inputs; None if a module is none."""
    linears = {name: _Linear(module, name) for name, _ in module.named_children() if name.endswith("_proj")}
    linears |= {name: _Linear(module, name) for name, _ in module.named_children() if "in_proj" in name}

    def by_kind(hidden: Tensor) -> _Projected:
        mixed, z, b, a = (linears[f"in_proj_{kind}"](hidden)[0] for kind in ("qkv", "z", "b", "a"))
        return mixed, z, b, a

    def by_head(hidden: Tensor) -> _Projected:
        both = linears["in_proj_qkvz"](hidden), linears["in_proj_ba"](hidden)
        q, k, v, z, b, a = (each[0].flatten(1) for each in module.fix_query_key_value_ordering(*both))
        return torch.cat((q, k, v), -1), z, b, a

    def apart(hidden: Tensor) -> _Projected:
        q, k, v, z, b, a = (linears[f"{kind}_proj"](hidden)[0] for kind in "qkvgba")
        return torch.cat((q, k, v), -1), z, b, a

    if linears.keys() == {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}:
        return by_kind
    if linears.keys() == {"in_proj_qkvz", "in_proj_ba", "out_proj"}:
        return by_head
    return apart if linears.keys() == {f"{kind}_proj" for kind in "qkvgbao"} else None


def _convolution_of(module: Any, heads: Heads, kernels: StateKernels) -> Convolution | None:
    """Return the convolution in front of a recurrence; None if the kernels can't compute the two."""
    convolve = _convolution(module.conv1d, kernels, silu=True)
    fits = kernels.computes(heads) and module.activation in _SILU
    return convolve if fits and convolve is not None and convolve.channels == heads.channels else None


def _convolution(conv: nn.Module, kernels: StateKernels, *, silu: bool) -> Convolution | None:
    """Return a convolution of each channel by itself; None if a module is another one."""
    if not isinstance(conv, nn.Conv1d) or conv.weight.shape[1] != 1 or conv.kernel_size[0] < 2:
        return None
    if (conv.stride, conv.dilation) != ((1,), (1,)):
        return None
    return kernels.convolution(conv.weight[:, 0], conv.bias, silu=silu)
