"""A mixture's experts beside transformers' own `grouped_mm`, in 16 bits and in 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.kernels import choose_ops, microseconds
from inference.gpu.expert_ways import ExpertMultiplier, something
from inference.gpu.experts import DeviceExperts
from inference.gpu.linears import Multiplier, graph_seconds
from inference.gpu.mixtures import ExpertWeight
from inference.kernels.gating import Gating
from inference.quantised.bits4 import Bits4, whole_numbers
from inference.quantised.rounding4 import LEVELS

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sizes of a layer's experts."""

    experts: int
    chosen: int
    hidden: int
    inner: int


MIXTURES = {
    "qwen3-30b-a3b": Mixture(128, 8, 2048, 768),
    "gpt-oss-20b": Mixture(32, 4, 2880, 2880),
    "mixtral-8x7b": Mixture(8, 2, 4096, 14336),
}
TINY = {"tiny": Mixture(4, 2, 64, 48)}


class _Own(nn.Module):
    """Experts as transformers' code sees them."""

    has_gate, has_bias, has_post_expert_norm, is_transposed, is_concatenated = True, False, False, False, True
    _is_expert_parallel = False

    def __init__(self, mixture: Mixture, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_experts = mixture.experts
        up, down = (mixture.experts, 2 * mixture.inner, mixture.hidden), (mixture.hidden, mixture.inner)
        self.gate_up_proj = _parameter(up, device, dtype)
        self.down_proj = _parameter((mixture.experts, *down), device, dtype)

    def _apply_gate(self, inner: Tensor) -> Tensor:
        gate, up = inner.chunk(2, dim=-1)
        return silu(gate) * up

    def forward(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        from transformers.integrations.moe import grouped_mm_experts_forward

        found: Tensor = grouped_mm_experts_forward(self, x, index, scores)
        return found


def experts(
    mixtures: dict[str, Mixture],
    device: torch.device,
    dtype: torch.dtype,
    rows: list[int],
    ceilings: Ceilings,
    clock: Clock,
) -> Iterator[Row]:
    """Yield what a layer's experts take for so many tokens, in microseconds, each way that there is."""
    for name, mixture in mixtures.items():
        own = _Own(mixture, device, dtype)
        ways = {
            "16 bits": _device(own, device, _plain(own)),
            "invariant": _device(own, device, _plain(own), True),
        }
        for form in ("awq", "nf4"):
            ways[form] = _device(own, device, _in_4_bits(mixture, form, device, dtype))
        for tokens in rows:
            clock.need(5, "experts")
            given = something(ways["16 bits"].up, tokens, mixture.chosen)
            calls: dict[str, Callable[[], object]] = {"transformers": partial(own.forward, *given)}
            for form, each in ways.items():
                _tune(each, tokens, device, mixture)
                calls[form] = partial(each.forward, *given)
            yield {
                "what": "experts",
                "mixture": name,
                "rows": tokens,
                "floor_us": round(1e6 * _floor(mixture, given[1], dtype, ceilings), 2),
                "us": {form: microseconds(run, device) for form, run in calls.items()},
            }


def _floor(mixture: Mixture, index: Tensor, dtype: torch.dtype, ceilings: Ceilings) -> float:
    """Return the seconds that the chosen experts take to be read in 16 bits, or multiplied."""
    numbers = 3 * mixture.inner * mixture.hidden
    read = len(index.unique()) * numbers * dtype.itemsize
    return max(read / ceilings.bytes, 2 * numbers * index.numel() / ceilings.flops)


def _tune(experts: DeviceExperts, tokens: int, device: torch.device, mixture: Mixture) -> None:
    if device.type == "cuda":
        experts.chosen = mixture.chosen
        experts.multiply.tune(experts.linears, [tokens], graph_seconds)


def _device(
    own: nn.Module,
    device: torch.device,
    weights: tuple[ExpertWeight, ExpertWeight],
    deterministic: bool = False,
) -> DeviceExperts:
    ops = choose_ops(device, deterministic=deterministic)
    made = DeviceExperts(own, ExpertMultiplier(Multiplier(ops)), *weights)
    made.gate = Gating()
    return made


def _plain(own: _Own) -> tuple[ExpertWeight, ExpertWeight]:
    up, down = own.gate_up_proj.detach(), own.down_proj.detach()
    return ExpertWeight(up, len(up)), ExpertWeight(down, len(down))


def _in_4_bits(
    mixture: Mixture, form: str, device: torch.device, dtype: torch.dtype
) -> tuple[ExpertWeight, ExpertWeight]:
    """Return random weights as AWQ or bitsandbytes have them, the same codes for each expert."""
    up = _stack(mixture.experts, 2 * mixture.inner, mixture.hidden, form, device, dtype)
    return up, _stack(mixture.experts, mixture.hidden, mixture.inner, form, device, dtype)


def _stack(
    experts: int, outputs: int, inner: int, form: str, device: torch.device, dtype: torch.dtype
) -> ExpertWeight:
    codes = torch.randint(0, 256, (outputs, -(-inner // 2)), dtype=torch.uint8, device=device)
    group = 128 if form == "awq" else 64
    scales = torch.rand(outputs, -(-inner // group), device=device) / 100
    if form == "awq":
        one = whole_numbers(codes, inner, group, scales, torch.randint(0, 16, scales.shape, device=device))
    else:
        one = Bits4(codes, inner, group, scales, torch.tensor(LEVELS["nf4"], device=device))
    weight = ExpertWeight.of_codes([one] * experts, dtype)
    assert weight is not None, "they are alike"
    return weight


def _parameter(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    numbers = torch.empty(shape, device=device, dtype=dtype).normal_(std=0.02)
    return nn.Parameter(numbers, requires_grad=False)
