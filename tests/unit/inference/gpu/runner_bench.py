"""A runner on CPU tensors with all that is around it, and requests for it."""

from __future__ import annotations

from inference.engine.ahead import AheadStepper
from inference.engine.step import Stepper
from inference.gpu.graphs import default_sizes
from inference.gpu.runner import GpuRunner, Launched
from inference.gpu.sampling import GpuSampler
from inference.gpu.slots import MirroredTable
from inference.grammar.masks import MaskPool
from inference.kv_cache.blocks import BlockPool, blocks_for
from inference.sampling.sampler import TorchSampler
from inference.scheduling.scheduler import Limits, Scheduler
from inference.types import CoreFailure, CoreOutput, CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.gpu.small_device import VOCABULARY, SmallModel

LONGEST = 96


class Bench:
    """A stepper over a small model on a device."""

    def __init__(
        self,
        *,
        sequences: int = 4,
        tokens: int = 64,
        blocks: int | None = None,
        sizes: tuple[int, ...] | None = None,
        ahead: bool = True,
        filters: bool = True,
    ) -> None:
        """`filters`: the device knows filters and penalties."""
        blocks = blocks or sequences * blocks_for(LONGEST)
        table = MirroredTable(sequences, blocks_for(LONGEST))
        limits = Limits(tokens=tokens, sequences=sequences, logit_rows=8)
        self.model = SmallModel(blocks)
        sizes = default_sizes(sequences) if sizes is None else sizes
        self.runner = GpuRunner(self.model, table, sizes, vocabulary=VOCABULARY if filters else 0)
        self.masks = MaskPool(VOCABULARY, ())
        sampler = GpuSampler(TorchSampler(self.masks.endings), self.runner.state)
        scheduler = Scheduler(BlockPool(blocks), limits, table)
        parts = (scheduler, self.runner, sampler, (), self.masks)
        self.stepper: Stepper[Launched] = (
            AheadStepper(*parts, by_device=self.runner.state.chooses) if ahead else Stepper(*parts)
        )
        self.preempted = 0
        self.said: dict[str, list[CoreOutput]] = {}
        self.failed: dict[str, str] = {}

    def step(self) -> None:
        frame = self.stepper.step()
        self.preempted += frame.stats.preempted if frame.stats else 0
        for output in frame.outputs:
            if isinstance(output, CoreFailure):
                self.failed[output.id] = output.message
            else:
                self.said.setdefault(output.id, []).append(output)

    def run(self, *requests: CoreRequest) -> None:
        for each in requests:
            self.stepper.add(each)
        while not self.stepper.idle:
            self.step()
        assert self.stepper.check_idle() == ()

    def text(self, id: str) -> list[int]:
        return [output.token_id for output in self.said[id]]


def request(
    id: str, prompt: tuple[int, ...], tokens: int = 10, *, sampling: Sampling | None = None, top: int = 0
) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=tokens,
        sampling=sampling or Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=top,
        prompt_logprobs=False,
    )
