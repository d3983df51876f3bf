"""What steps through sequences on a CPU, put together of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from inference.config import EngineConfig
from inference.cpu.batched import BatchedRunner
from inference.cpu.prefault import Prefault
from inference.cpu.runner import PagedRunner
from inference.cpu.stack import FusedRunner
from inference.engine.speculation import MOST_TOKENS, Speculation
from inference.engine.step import Stepper
from inference.grammar.masks import MaskPool
from inference.kernels.native import Library
from inference.kv_cache.blocks import PAGE, BlockPool, blocks_for
from inference.levels.served import Served
from inference.planning.demand import TOKEN_BYTES, Demand
from inference.planning.plan import MIB, Plan
from inference.sampling.sampler import TorchSampler
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.computing import IdleWork, Runner
from inference.sequences.state import SlotTable
from inference.shards.group import Group
from inference.shards.leading import LeadingIdleWork, LeadingRunner
from inference.shards.meeting import Sizes, wait_for_all
from inference.shards.runner import SharedRunner
from inference.shards.steps import Teller

_LOGIT_BYTES = 128 * MIB  # of one step's prompt log-probabilities
_WHOLE_PROMPTS = 2  # that a GPU reads in turn while texts wait: the host takes milliseconds for each


def make_stepper(
    served: Served,
    plan: Plan,
    eos: tuple[int, ...],
    masks: MaskPool,
    library: Library | None,
    config: EngineConfig,
    progress: Callable[[str], None],
    group: Group | None = None,
) -> Stepper[Tensor]:
    """Return the stepper of a model, which has the others in a group compute their shares."""
    blocks, limits = plan.kv_tokens // PAGE, step_limits(served, plan)
    table = SlotTable(limits.sequences, blocks_for(plan.max_total_tokens), plan.snapshots)
    scheduler = Scheduler(BlockPool(blocks), limits, table, prefix_caching=plan.prefix_caching)
    runner, idle_work = _runner(served, blocks, table, config, group)
    find = runner.statistics if isinstance(runner, FusedRunner | LeadingRunner) else None
    sampler = TorchSampler(masks.endings, library, find, served.decoder_start)
    speculation = None
    if config.speculate and limits.chunked and not served.state_layers:
        tokens = min(MOST_TOKENS, limits.tokens)
        speculation = Speculation(scheduler, sampler, config.speculate, tokens)
    elif config.speculate:
        progress(
            "No tokens are guessed ahead: as this model is computed, wrong guesses couldn't be taken back"
        )
    return Stepper(scheduler, runner, sampler, eos, masks, speculation, idle_work)


def _runner(
    served: Served, blocks: int, table: SlotTable, config: EngineConfig, group: Group | None
) -> tuple[Runner[Tensor], IdleWork | None]:
    """Return what computes steps, and what makes memory ready for them."""
    if group is not None:
        Sizes(blocks, *table.blocks.shape, config.prefault_cache).tell(group)
    runner = served.make_runner(blocks)
    if not isinstance(runner, FusedRunner | PagedRunner | SharedRunner | BatchedRunner):
        return runner, None
    idle_work = Prefault(runner.arrays) if config.prefault_cache else None
    if group is None or not isinstance(runner, SharedRunner):
        return runner, idle_work
    teller = Teller(group, *table.blocks.shape)
    wait_for_all(group)
    return LeadingRunner(runner, group, teller), idle_work and LeadingIdleWork(idle_work, teller)


def known_demand(served: Served, demand: Demand) -> Demand:
    """Return what a model needs, by what is known since it was loaded."""
    whole = not served.level.chunked
    kv_bytes = served.kv_bytes or (TOKEN_BYTES if served.state_layers else demand.kv_bytes)
    return replace(demand, kv_bytes=kv_bytes, state_bytes=served.state_bytes, whole=whole)


def step_limits(served: Served, plan: Plan) -> Limits:
    """Return what one step of a model may take on."""
    return Limits(
        tokens=plan.step_tokens,
        sequences=plan.sequences,
        logit_rows=max(_LOGIT_BYTES // (served.vocabulary * 4), 1),
        chunked=served.level.chunked,
        beside=plan.beside_tokens if served.level.chunked else None,
        whole=None if served.level.chunked or plan.machine.device_type == "cpu" else _WHOLE_PROMPTS,
    )
