"""Layers that keep a state elsewhere than in transformers' cache.

RecurrentGemma's keep it on themselves (Griffin: De et al. 2024, arXiv:2402.19427): their own code goes on by
one token only. MiniMax's keep it in a cache of the model's own (lightning attention: Qin et al. 2024,
arXiv:2401.04658).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from inference.recurrent.layers import Kept, State, StateLayer


def find_elsewhere(model: nn.Module) -> dict[nn.Module, StateLayer]:
    """Return the modules that are such layers, by what they are made of, in their order."""
    found: dict[nn.Module, StateLayer] = {}
    for module in model.modules():
        if hasattr(module, "rg_lru") and hasattr(module, "conv_1d"):
            found[module] = _Griffin.of(module)
        elif _is_lightning(module):
            found[module] = _Lightning.of(module)
    return found


def restore_decays(model: nn.Module) -> None:
    """Compute anew what MiniMax's files hold rounded: how fast heads forget, which their numbers follow from.

    Its own code goes through whole prompts by one of these tables and on by another. Once they are rounded to
    16 bits the two disagree, as they still do where the model itself is in 16 bits.
    """
    for module in model.modules():
        if _is_lightning(module):
            rates = module.get_slope_rate()
            tables = (rates, *module.decay_factors(rates))
            names = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
            for name, table in zip(names, tables, strict=True):
                getattr(module, name).copy_(table)


def _is_lightning(module: nn.Module) -> bool:
    return hasattr(module, "slope_rate") and hasattr(module, "decay_factors")


@dataclass(frozen=True, slots=True)
class _Griffin(StateLayer):
    """A gated recurrence of each channel by itself, behind a short convolution."""

    module: Any

    @classmethod
    def of(cls, module: Any) -> _Griffin:
        width, _, taps = module.conv_1d.weight.shape
        inputs = State("conv_states", 0, (width, taps - 1), torch.float32)
        return cls((inputs, State("recurrent_states", 0, (module.lru_width,), torch.float32)), module)

    def run(self, own: Callable[..., Any], given: dict[str, Any], kept: Kept | None) -> tuple[Any, Kept]:
        """Compute what its own code does, whose convolution forgets what was before several tokens."""
        module, hidden = self.module, given["input_states"]
        inputs, recurrent = self.states
        gates = module.act_fn(module.linear_y(hidden))
        x = module.linear_x(hidden).transpose(1, 2)
        before = x.new_zeros(len(x), *inputs.shape) if kept is None else kept[inputs].to(x.dtype)
        read = torch.cat((before, x), dim=-1)
        conv = module.conv_1d
        mixed = functional.conv1d(read, conv.weight, conv.bias, groups=conv.groups)
        scan = module.rg_lru
        scan.recurrent_states = None if kept is None else kept[recurrent]
        try:
            scanned = scan(mixed.transpose(1, 2), given["position_ids"])
            keeps = {inputs: read[..., -inputs.shape[-1] :].float(), recurrent: scan.recurrent_states}
        finally:
            scan.recurrent_states = None
        return (module.linear_out(scanned * gates), None), keeps


@dataclass(frozen=True, slots=True)
class _Lightning(StateLayer):
    """Linear attention that each head forgets at its own, constant, rate."""

    module: Any

    @classmethod
    def of(cls, module: Any) -> _Lightning:
        heads, dim = module.num_attention_heads, module.head_dim
        return cls((State("recurrent_states", 0, (heads, dim, dim), torch.float32),), module)

    def run(self, own: Callable[..., Any], given: dict[str, Any], kept: Kept | None) -> tuple[Any, Kept]:
        """Compute what its own code does, which goes on from a state token by token."""
        (state,), module, hidden = self.states, self.module, given["hidden_states"]
        tokens = hidden.shape[1]
        mixed = module.act_fn(module.qkv_proj(hidden)).view(*hidden.shape[:2], -1, 3 * module.head_dim)
        query, key, value = mixed.transpose(1, 2).split(module.head_dim, dim=-1)
        before = query.new_zeros(len(query), *state.shape) if kept is None else kept[state].to(query.dtype)
        found = []
        for at in range(0, tokens, module.block_size):
            q, k, v = (each[:, :, at : at + module.block_size] for each in (query, key, value))
            size = q.shape[2]
            seen = (q @ k.transpose(-1, -2)) * module.diagonal_decay[:, :, :size, :size]
            found.append((q * module.query_decay[:, :size]) @ before + seen @ v)
            added = (k * module.key_decay[:, -size:]).transpose(-1, -2) @ v
            before = before * torch.exp(-module.slope_rate * size) + added
        attended = module.norm(torch.cat(found, dim=2).transpose(1, 2).flatten(2))
        gated = torch.sigmoid(module.output_gate(hidden)) * attended
        return (module.out_proj(gated), None), {state: before.float()}
