"""How the machine's memory is divided, decided before the model is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from inference.blocks import PAGE
from inference.config import EngineConfig
from inference.errors import ModelUnavailable

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the plan may count on."""

    device_type: str  # "cpu", "cuda"
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the model needs, as its files say."""

    weights_bytes: int
    parameters: int
    kv_bytes: int  # of one token, all layers
    max_positions: int | None  # None: no limit of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes that the engine works with."""

    weights_bytes: int
    kv_bytes: int  # of one token, all layers
    kv_tokens: int  # capacity of the KV cache, a multiple of PAGE
    max_input_tokens: int
    max_total_tokens: int
    step_tokens: int
    sequences: int

    def __str__(self) -> str:
        """Return the plan as one line for a person."""
        return (
            f"Memory plan: weights {self.weights_bytes / MIB:,.0f} MiB, KV cache {self.kv_tokens:,} tokens x "
            f"{self.kv_bytes:,} B = {self.kv_tokens * self.kv_bytes / MIB:,.0f} MiB; "
            f"a sequence holds up to {self.max_total_tokens:,} tokens (input {self.max_input_tokens:,}), "
            f"a step computes up to {self.step_tokens:,} tokens of {self.sequences} sequences"
        )


def make_plan(config: EngineConfig, demand: Demand, machine: Machine) -> Plan:
    """Return the sizes, settings before computed ones; raise ModelUnavailable if they don't fit."""
    sequences = config.max_batch_size or (32 if machine.device_type == "cpu" else 256)
    step_tokens = config.max_batch_prefill_tokens or _step_tokens(demand, machine)
    kv_tokens = config.max_batch_total_tokens or _kv_tokens(config, demand, machine, sequences)
    kv_tokens = kv_tokens // PAGE * PAGE
    longest = min(demand.max_positions or kv_tokens, kv_tokens)
    max_total = config.max_total_tokens or longest
    if max_total > kv_tokens:
        raise ModelUnavailable(
            f"Not enough memory to handle `max_total_tokens={max_total}`: the KV cache holds {kv_tokens} "
            f"tokens; lower --max-total-tokens, or raise --max-batch-total-tokens if there is memory"
        )
    if max_total > longest:
        raise ModelUnavailable(
            f"`max_total_tokens` must be <= {longest}, the positions that the model knows. Given: {max_total}"
        )
    max_input = config.max_input_tokens or max_total - 1
    if not 0 < max_input < max_total:
        raise ModelUnavailable(
            f"`max_input_tokens` must be < `max_total_tokens`. Given: {max_input} and {max_total}; "
            f"set --max-input-tokens and --max-total-tokens to fit the model and the memory"
        )
    return Plan(
        weights_bytes=demand.weights_bytes,
        kv_bytes=demand.kv_bytes,
        kv_tokens=kv_tokens,
        max_input_tokens=max_input,
        max_total_tokens=max_total,
        step_tokens=step_tokens,
        sequences=min(sequences, step_tokens),
    )


def _step_tokens(demand: Demand, machine: Machine) -> int:
    """Return a step's token budget: on CPU about a quarter of a second of prefill at 100 GFLOP/s."""
    if machine.device_type != "cpu":
        return 2048
    flops_per_token = 2 * max(demand.parameters, 1)
    return min(max(25_000_000_000 // flops_per_token, 256), 1024) // 64 * 64


def _kv_tokens(config: EngineConfig, demand: Demand, machine: Machine, sequences: int) -> int:
    """Return how many tokens the cache holds; on CPU modest, as the machine serves others too."""
    left = machine.free_bytes - demand.weights_bytes
    budget = min(left // 4, 4 * GIB) if machine.device_type == "cpu" else left * 9 // 10
    fits = max(budget, 0) // demand.kv_bytes
    longest = config.max_total_tokens or demand.max_positions or fits
    wanted = sequences * -(-longest // PAGE) * PAGE
    if min(fits, wanted) < PAGE:
        raise ModelUnavailable(
            f"Not enough memory: {machine.free_bytes / MIB:,.0f} MiB are free, the weights take "
            f"{demand.weights_bytes / MIB:,.0f} MiB; use a smaller model or --dtype, or a bigger machine"
        )
    return min(fits, wanted)


def free_memory() -> int:
    """Return the bytes that this process may still use: the machine's, within the container's limit."""
    free = _meminfo_available()
    limit, used = (_read_int(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        free = min(free, limit - used)
    return max(free, 0)


def _meminfo_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: half of what is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):  # no control group, or "max"
        return None
