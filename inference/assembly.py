"""What steps through sequences on a CPU, put together of its parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from inference.blocks import PAGE, BlockPool, blocks_for
from inference.config import EngineConfig
from inference.kernels.native import Library
from inference.masks import MaskPool
from inference.plan import MIB, Plan
from inference.prefault import Prefault
from inference.runner import PagedRunner
from inference.sampler import TorchSampler
from inference.scheduler import Limits, Scheduler
from inference.served import Served
from inference.speculation import MOST_TOKENS, Speculation
from inference.stack import FusedRunner
from inference.state import SlotTable
from inference.step import Stepper

_LOGIT_BYTES = 128 * MIB  # of one step's prompt log-probabilities


def make_stepper(
    served: Served,
    plan: Plan,
    eos: tuple[int, ...],
    masks: MaskPool,
    library: Library | None,
    config: EngineConfig,
    progress: Callable[[str], None],
) -> Stepper[Tensor]:
    """Return the stepper of a model."""
    blocks, limits = plan.kv_tokens // PAGE, step_limits(served, plan)
    table = SlotTable(limits.sequences, blocks_for(plan.max_total_tokens))
    scheduler = Scheduler(BlockPool(blocks), limits, table, prefix_caching=plan.prefix_caching)
    runner = served.make_runner(blocks)
    find = runner.statistics if isinstance(runner, FusedRunner) else None
    sampler = TorchSampler(masks.endings, library, find)
    speculation = None
    if config.speculate and limits.chunked:
        tokens = min(MOST_TOKENS, limits.tokens)
        speculation = Speculation(scheduler, sampler, config.speculate, tokens)
    elif config.speculate:
        progress(
            "No tokens are guessed ahead: at this model's level what was guessed wrongly can't be taken back"
        )
    prefault = None
    if config.prefault_cache and isinstance(runner, FusedRunner | PagedRunner):
        prefault = Prefault(runner.arrays)
    return Stepper(scheduler, runner, sampler, eos, masks, speculation, prefault)


def step_limits(served: Served, plan: Plan) -> Limits:
    """Return what one step of a model may take on."""
    return Limits(
        tokens=plan.step_tokens,
        sequences=plan.sequences,
        logit_rows=max(_LOGIT_BYTES // (served.vocabulary * 4), 1),
        chunked=served.level.chunked,
        beside=plan.beside_tokens if served.level.chunked else None,
    )
