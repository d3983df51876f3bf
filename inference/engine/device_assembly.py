"""What steps on a device, put together of a model at its level: memory first, then cache, graphs, stepper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from inference.config import EngineConfig
from inference.engine.ahead import AheadStepper
from inference.engine.step import Stepper
from inference.errors import ModelUnavailable
from inference.gpu.graphs import chosen_sizes
from inference.gpu.memory import CudaMeter, Extent, Meter, Parts, Room, measure, memory_named
from inference.gpu.runner import GpuRunner, Launched
from inference.gpu.sampling import GpuSampler
from inference.gpu.slots import MirroredTable
from inference.grammar.masks import Endings, MaskPool
from inference.kv_cache.blocks import PAGE, BlockPool, blocks_for
from inference.levels.served import MakeModel
from inference.planning.plan import MIB, Plan, fit_plan
from inference.sampling.sampler import TorchSampler
from inference.scheduling.scheduler import Limits, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What a device's stepper is made of."""

    config: EngineConfig
    make_model: MakeModel
    vocabulary: int
    limits: Limits
    eos: tuple[int, ...]

    def fit(self, plan: Plan, device: torch.device, progress: Callable[[str], None]) -> Plan:
        """Return the plan with a cache that was measured to fit; raise ModelUnavailable if none does."""
        if device.type != "cuda":
            return plan
        with memory_named("the biggest step was tried", device):
            room = self.measure(plan, CudaMeter(device))
        progress(str(room))
        fitted = fitted_plan(self.config, plan, room, progress)
        progress(str(fitted))
        return fitted

    def measure(self, plan: Plan, meter: Meter) -> Room:
        """Return where a device's memory goes."""
        extent = Extent(
            tokens=self.limits.tokens,
            sequences=self.limits.sequences,
            longest=plan.max_total_tokens,
            logit_rows=self.limits.logit_rows,
            vocabulary=self.vocabulary,
        )
        ends = Endings(self.vocabulary, self.eos)
        return measure(lambda blocks: self._parts(plan, blocks, ends), extent, meter, self._fraction)

    def make_stepper(self, plan: Plan, masks: MaskPool, progress: Callable[[str], None]) -> Stepper[Launched]:
        """Return what steps, its graphs captured; raise ModelUnavailable where memory ends before."""
        blocks = plan.kv_tokens // PAGE
        runner, sampler, table = self._parts(plan, blocks, masks.endings)
        runner.warm_up(progress, tune=self.config.tune_linears)
        # Fewer, where states of all found no room
        limits = replace(self.limits, sequences=plan.sequences)
        scheduler = Scheduler(BlockPool(blocks), limits, table, prefix_caching=plan.prefix_caching)
        if not self.config.one_step_ahead:
            return Stepper(scheduler, runner, sampler, self.eos, masks)
        return AheadStepper(scheduler, runner, sampler, self.eos, masks, by_device=runner.state.chooses)

    @property
    def _fraction(self) -> float:
        return self.config.cuda_memory_fraction

    def _parts(self, plan: Plan, blocks: int, ends: Endings) -> Parts:
        table = MirroredTable(plan.sequences, blocks_for(plan.max_total_tokens), plan.snapshots)
        sizes = chosen_sizes(self.config.cuda_graphs, plan.sequences)
        vocabulary = self.vocabulary if self.config.filter_on_device else 0
        runner = GpuRunner(self.make_model(blocks), table, sizes, vocabulary=vocabulary)
        return runner, GpuSampler(TorchSampler(ends), runner.state), table


def fitted_plan(config: EngineConfig, plan: Plan, room: Room, progress: Callable[[str], None]) -> Plan:
    """Return a plan whose cache is in the room that was measured, for sequences no longer than before.

    Deployments of TGI may ask for more, as it measures, whatever --max-batch-total-tokens says.
    """
    machine, most = replace(plan.machine, cache_bytes=room.cache), plan.sequences
    kv_bytes, asked = max(plan.demand.kv_bytes, 1), config.max_batch_total_tokens
    if room.cache < PAGE * kv_bytes:
        raise ModelUnavailable(
            f"Not enough memory on the GPU: a KV cache of {PAGE:,} tokens takes {PAGE * kv_bytes / MIB:,.0f} "
            f"MiB. {room}. Lower --max-batch-prefill-tokens or --max-batch-size, raise "
            f"--cuda-memory-fraction, or use a smaller model or a bigger GPU"
        )
    if asked is not None:
        free = replace(config, max_batch_total_tokens=None)
        states = fit_plan(free, plan, plan.demand, machine, most).states_bytes
        fits = (room.cache - states) // kv_bytes
        if asked > fits:
            progress(
                f"--max-batch-total-tokens asks for {asked:,}; the GPU has memory for {fits:,}, which it is"
            )
            config = replace(config, max_batch_total_tokens=fits)
    return fit_plan(config, plan, plan.demand, machine, most)
