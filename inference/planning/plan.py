"""The sizes the engine works with, computed from the model and the machine before the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.kv_cache.blocks import PAGE
from inference.machine import Machine
from inference.planning.demand import GIB as GIB
from inference.planning.demand import MIB as MIB
from inference.planning.demand import TOKEN_BYTES, Demand, check_whole, states_said, too_little
from inference.telling import counted

_GIGAFLOPS = {  # of one core, in float32, cautiously
    "amx": 95,
    "avx512": 95,
    "avx2": 45,
    "neon": 30,
    "baseline": 12,
    "torch": 50,
}
# States of beginnings, whatever runs: each text leaves two. With 4 for 4 texts, 55 % of what 8 clients had in
# common was found, of 95; with one place for one text nothing
_LEAST_SNAPSHOTS = 16
_STEP_SECONDS = 0.15  # of prompts alone: as long may one that has just come wait before it is looked at
_STEP_TOKENS = (64, 160)
# With more in a step several prompts all wait for the last of them. In int8 (135M, Zen 4, in process) the
# median first token of 8 clients came after 0.76 of the time with 160 of them, not 400, of 32 clients after
# 0.61, at the same rates. Of what takes so short a time there may be more
_SHORT_STEP_SECONDS = 0.05
_SHORT_STEP_TOKENS = (0, 1024)
_WHOLE_COPIES = 3  # of what is kept of texts that are read at once: twice where they become a batch, and room
# Of a GPU's step with prompts. The host takes 10 to 24 ms to launch one, whatever its size
_DEVICE_SECONDS = 0.025
_DEVICE_TOKENS = (2048, 16384)
# What a piece of a prompt may add to the time between the tokens of others. With 0.03 the 99th percentile of
# that time was 27 % longer with 8 clients, and no more tokens came per second; with 0.015 3 % fewer would.
_BESIDE_SECONDS = 0.022
_BESIDE_TOKENS = (16, 512)  # fewer, and reading the weights for each takes longer than computing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes that the engine works with."""

    machine: Machine
    demand: Demand
    kv_tokens: int  # capacity of the KV cache, a multiple of PAGE
    max_input_tokens: int
    max_total_tokens: int
    step_tokens: int
    beside_tokens: int  # of these, of prompts beside texts that go on
    sequences: int
    prefix_caching: bool
    snapshots: int = 0  # states of beginnings of texts
    missed_tokens: int = 0  # that the KV cache was to hold, if there is no memory for so many

    @property
    def prefill_tokens(self) -> int:
        """Return how many tokens a step computes at most."""
        return max(self.step_tokens, self.max_input_tokens) if self.demand.whole else self.step_tokens

    def step_seconds(self, tokens: int) -> float:
        """Return about how long a step of so many tokens takes at most, in seconds; 0.0 on a GPU."""
        if self.machine.device_type != "cpu":
            return 0.0
        return 2 * self.demand.parameters * tokens / _flops(self.demand, self.machine)

    def __str__(self) -> str:
        """Return the plan as one line for a person."""
        machine, demand = self.machine, self.demand
        if machine.device_type == "cpu":
            kernels = "torch's kernels" if machine.isa == "torch" else f"native kernels ({machine.isa})"
            computing = f"{counted(machine.threads, 'thread')}, {kernels}"
        else:
            computing = machine.device_type
        form = demand.weights_form
        if demand.loading_bytes > demand.weights_bytes:
            form += f"; {demand.loading_bytes / MIB:,.0f} MiB while they are {demand.loading_how}"
        return (
            f"Plan: {computing}; weights {demand.weights_bytes / MIB:,.0f} MiB ({form}), "
            f"{self._experts_said}{self._states_said}"
            f"{'KV cache' if demand.kv_bytes > TOKEN_BYTES else 'books for'} {self.kv_tokens:,} tokens x "
            f"{demand.kv_bytes:,} B = "
            f"{self.kv_tokens * demand.kv_bytes / MIB:,.0f} MiB of {machine.free_bytes / MIB:,.0f} MiB free"
            f"{self._shortage_said}, "
            f"prefix cache {'on' if self.prefix_caching else 'off'}; "
            f"a sequence holds up to {self.max_total_tokens:,} tokens (input {self.max_input_tokens:,}), "
            f"a step computes {self._step_said}"
        )

    @property
    def states_bytes(self) -> int:
        """Return what the states of texts and of beginnings take."""
        return (2 * self.sequences + self.snapshots) * self.demand.state_bytes

    @property
    def _step_said(self) -> str:
        if self.demand.whole:
            return f"prompts whole, one at a time, of {counted(self.sequences, 'sequence')}"
        return (
            f"up to {self.step_tokens:,} tokens of {counted(self.sequences, 'sequence')}, "
            f"{self.beside_tokens:,} of prompts beside a text that goes on"
        )

    @property
    def _shortage_said(self) -> str:
        if not self.missed_tokens:
            return ""
        return f" (there is no memory for the {self.missed_tokens:,} tokens of --max-batch-total-tokens)"

    @property
    def _experts_said(self) -> str:
        passing = self.demand.step_bytes
        return f"what a step's experts compute {passing / MIB:,.0f} MiB, " if passing else ""

    @property
    def _states_said(self) -> str:
        each = self.demand.state_bytes
        if not each:
            return ""
        return (
            f"{2 * self.sequences} states of texts and {self.snapshots} of beginnings x "
            f"{each / MIB:,.1f} MiB = {self.states_bytes / MIB:,.0f} MiB, "
        )


def make_plan(config: EngineConfig, demand: Demand, machine: Machine, most: int | None = None) -> Plan:
    """Return the sizes, settings before computed ones; raise ModelUnavailable if they don't fit.

    `most`: sequences; None: as many as there is room for, up to a usual number.
    """
    if machine.device_type == "cpu" and demand.loading_bytes > machine.free_bytes:
        raise ModelUnavailable(
            f"Not enough memory: {machine.free_bytes / MIB:,.0f} MiB are free, the weights take "
            f"{demand.loading_bytes / MIB:,.0f} MiB while they are {demand.loading_how}; use a smaller "
            "model, or a bigger machine"
        )
    sequences = config.max_batch_size or _sequences(config, demand, machine)
    sequences = sequences if most is None else min(sequences, most)
    step_tokens = config.max_batch_prefill_tokens or _step_tokens(demand, machine, sequences)
    demand = replace(demand, step_bytes=step_tokens * demand.step_token_bytes)
    snapshots = _snapshots(config, demand, machine, sequences)
    states = (2 * sequences + snapshots) * demand.state_bytes
    asked, missed = config.max_batch_total_tokens, 0
    kv_tokens = asked or _kv_tokens(config, demand, machine, sequences, states)
    if asked is not None and asked >= PAGE and (demand.whole or machine.device_type == "cpu"):
        kv_tokens = min(asked, _most_cache(demand, machine, states) // demand.kv_bytes)
        if kv_tokens < PAGE:
            raise too_little(demand, machine, sequences, states)
        missed = asked if kv_tokens < asked else 0
    if kv_tokens < PAGE:
        raise ModelUnavailable(
            f"`max_batch_total_tokens` must be >= {PAGE}, a block of the KV cache. Given: {kv_tokens}; raise "
            f"--max-batch-total-tokens, or leave it out"
        )
    kv_tokens = kv_tokens // PAGE * PAGE
    max_total = config.max_total_tokens or min(demand.max_positions or demand.longest, kv_tokens)
    positions = demand.most_positions or demand.max_positions
    if max_total > kv_tokens:
        raise ModelUnavailable(
            f"Not enough memory to handle `max_total_tokens={max_total}`: the KV cache holds {kv_tokens} "
            f"tokens{states_said(sequences, states)}; lower --max-total-tokens, or raise "
            f"--max-batch-total-tokens if there is memory"
        )
    if positions is not None and max_total > positions:
        raise ModelUnavailable(
            f"`max_total_tokens` must be <= {positions}, the positions that the model knows. Given: "
            f"{max_total}; lower --max-total-tokens, or leave it out{demand.positions_note}"
        )
    max_input = _max_input(config, demand, machine, max_total)
    if not 0 < max_input < max_total:
        raise ModelUnavailable(
            f"`max_input_tokens` must be < `max_total_tokens`. Given: {max_input} and {max_total}; "
            f"set --max-input-tokens and --max-total-tokens to fit the model and the memory"
        )
    return Plan(
        machine=machine,
        demand=demand,
        kv_tokens=kv_tokens,
        missed_tokens=missed,
        max_input_tokens=max_input,
        max_total_tokens=max_total,
        step_tokens=step_tokens,
        beside_tokens=min(step_tokens, config.prefill_chunk_tokens or _beside_tokens(demand, machine)),
        sequences=min(sequences, step_tokens),
        prefix_caching=config.prefix_caching
        and not demand.whole
        and not (demand.state_bytes and not snapshots),
        snapshots=snapshots,
    )


def fit_plan(
    config: EngineConfig, plan: Plan, demand: Demand, machine: Machine, most: int | None = None
) -> Plan:
    """Return the plan by what is known since, for texts no longer than before: the model is ready for those.

    Beyond them it may compute otherwise, and its level was neither chosen nor proven for that.
    """
    fitted = make_plan(config, demand, machine, most)
    if fitted.max_total_tokens <= plan.max_total_tokens:
        return fitted
    return make_plan(replace(config, max_total_tokens=plan.max_total_tokens), demand, machine, most)


def _max_input(config: EngineConfig, demand: Demand, machine: Machine, max_total: int) -> int:
    """Return how long a prompt may be; raise ModelUnavailable if it is read at once, and no step takes it."""
    asked, step = config.max_input_tokens, config.max_batch_prefill_tokens
    if not demand.whole:
        return asked or max_total - 1
    if asked:
        check_whole(asked, step, demand)
        return asked
    room = _left(demand, machine) // 2  # as the cache has a quarter, and attention isn't all that is computed
    return min(max_total - 1, step or max_total, demand.longest_prompt(max_total, room))


def _sequences(config: EngineConfig, demand: Demand, machine: Machine) -> int:
    """Return how many sequences run at once: fewer, if their states took most of the cache's memory."""
    usual = 32 if machine.device_type == "cpu" else 256
    if not demand.state_bytes:
        return usual
    places = 3 if config.prefix_caching else 2  # two of its own, and one of some beginning
    return min(usual, max(_state_room(config, demand, machine) // (places * demand.state_bytes), 1))


def _snapshots(config: EngineConfig, demand: Demand, machine: Machine, sequences: int) -> int:
    """Return how many states of beginnings are kept; raise ModelUnavailable if those of texts don't fit.

    Those of as many texts as were asked for may take most of what is free, not only what is modest.
    """
    if not demand.state_bytes:
        return 0
    asked, own = config.max_batch_size is not None, 2 * sequences * demand.state_bytes
    room = _left(demand, machine) * 3 // 4 if asked else _state_room(config, demand, machine)
    if asked and own > room:
        raise too_little(demand, machine, sequences, own)
    if asked:
        room = min(room, _beside_longest(config, demand, machine))
    spare = max(room - own, 0) // demand.state_bytes
    return min(max(sequences, _LEAST_SNAPSHOTS), spare) if config.prefix_caching else 0


def _beside_longest(config: EngineConfig, demand: Demand, machine: Machine) -> int:
    """Return what states may take for a cache that holds the longest text that was asked for."""
    longest = (config.max_total_tokens or 0) * demand.kv_bytes
    if machine.device_type == "cpu":  # the cache has half of what they leave
        return _left(demand, machine) - 2 * longest
    return _cache_budget(demand, machine) - longest


def _state_room(config: EngineConfig, demand: Demand, machine: Machine) -> int:
    """Return what states may take where nobody says of how many texts: who asks for a long one gets it."""
    budget = _cache_budget(demand, machine)
    return min(budget * 3 // 4, budget - (config.max_total_tokens or 0) * demand.kv_bytes)


def _step_tokens(demand: Demand, machine: Machine, sequences: int) -> int:
    """Return a step's token budget: the newest token of every sequence, and a piece of a prompt."""
    if machine.device_type != "cpu":
        return _device_piece(demand, machine)
    short = _piece(demand, machine, _SHORT_STEP_SECONDS, _SHORT_STEP_TOKENS)
    return sequences + max(short, _piece(demand, machine, _STEP_SECONDS, _STEP_TOKENS))


def _beside_tokens(demand: Demand, machine: Machine) -> int:
    """Return how many of a step's tokens are of prompts where texts go on."""
    return _piece(demand, machine, _BESIDE_SECONDS, _BESIDE_TOKENS)


def _piece(demand: Demand, machine: Machine, seconds: float, bounds: tuple[int, int]) -> int:
    """Return how many tokens of a prompt are computed in so many seconds.

    On CPU a product of more than about 20 rows is bound by arithmetic, so bigger pieces gain next to
    nothing; but each running text waits for the whole step.
    """
    if machine.device_type != "cpu":
        return _device_piece(demand, machine)
    least, most = bounds
    chunk = int(seconds * _flops(demand, machine) / (2 * max(demand.parameters, 1)))
    return min(max(chunk, least), most) // 8 * 8


def _device_piece(demand: Demand, machine: Machine) -> int:
    """Return how many tokens of prompts a GPU computes in a step, so that it doesn't wait for the host."""
    least, most = _DEVICE_TOKENS
    tokens = int(_DEVICE_SECONDS * machine.flops / (2 * max(demand.parameters, 1)))
    return min(max(tokens, least), most) // 8 * 8


def _flops(demand: Demand, machine: Machine) -> float:
    """Return how many operations a second a CPU does, cautiously."""
    return machine.threads * _GIGAFLOPS[machine.isa] * 1e9 * demand.product_speed


def _kv_tokens(config: EngineConfig, demand: Demand, machine: Machine, sequences: int, states: int) -> int:
    """Return how many tokens the cache holds beside `states` bytes: what all can use, if it fits."""
    budget = _cache_budget(demand, machine)
    asked = states and config.max_batch_size is not None and machine.device_type == "cpu"
    budget = min(budget, (_left(demand, machine) - states) // 2) if asked else budget - states
    fits = max(budget, 0) // demand.kv_bytes
    longest = config.max_total_tokens or demand.max_positions or min(fits, demand.longest)
    wanted = sequences * -(-longest // PAGE) * PAGE
    if min(fits, wanted) < PAGE:
        raise too_little(demand, machine, sequences, states)
    return min(fits, wanted)


def _cache_budget(demand: Demand, machine: Machine) -> int:
    """Return how many bytes keys, values and states may take.

    On CPU, as the machine serves others too, they may take a quarter of what is left beside the weights, and
    not more than these or 2 GiB: the prefix cache fills in time whatever there is. On a GPU nine tenths are
    what is planned with until what else is needed has been measured. Where prompts are read at once
    that isn't done, and what is kept of texts lies there twice when these become a batch.
    """
    if machine.cache_bytes is not None:
        return machine.cache_bytes
    left = _left(demand, machine)
    if machine.device_type == "cpu":
        return min(left // 4, max(demand.weights_bytes, 2 * GIB))
    return left // 4 if demand.whole else left * 9 // 10


def _most_cache(demand: Demand, machine: Machine, states: int) -> int:
    """Return how many bytes of keys and values may be asked for, beside `states` bytes."""
    left = _left(demand, machine) - states
    return left // _WHOLE_COPIES if demand.whole else left * 9 // 10


def _left(demand: Demand, machine: Machine) -> int:
    """Return what is free beside weights and what steps compute: what was measured, if it was."""
    taken = demand.weights_bytes + demand.step_bytes
    return machine.free_bytes - taken if machine.cache_bytes is None else machine.cache_bytes
