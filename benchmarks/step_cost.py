"""What a step costs beside the model and the sampler: `python -m benchmarks.step_cost`."""

from __future__ import annotations

import time

import numpy as np

from inference.engine.step import Stepper
from inference.grammar.masks import MaskPool
from inference.kv_cache.blocks import PAGE, BlockPool, blocks_for
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.chosen import Chosen
from inference.sequences.state import Pieces, SlotTable
from inference.sequences.work import Work
from inference.types import CoreRequest, LogprobsMode, Sampling


class NoRunner:
    """Computes nothing."""

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> None:
        """Return nothing, which is all that NoSampler needs."""


class NoSampler:
    """Chooses the same token always."""

    def __init__(self) -> None:
        self._columns = {0: Chosen(np.empty(0, dtype=np.int64), [])}

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return yes, as for most requests."""
        return True

    def choose(self, work: Work, logits: None) -> Chosen:
        """Return that token for each sequence."""
        count = len(work.sequences)
        if count not in self._columns:
            self._columns[count] = Chosen(np.full(count, 9), [-0.5] * count)
        return self._columns[count]


def step_seconds(sequences: int, *, prompt: int = 100, tokens: int = 400) -> float:
    """Return the processor time of one steady decode step of so many sequences, the least of all measured.

    Every 16th step takes a new block for each, and publishes the one before; it is the mean over 64.
    """
    limits = Limits(tokens=max(sequences, 1024), sequences=sequences, logit_rows=1)
    blocks = blocks_for(prompt + tokens)
    table = SlotTable(sequences, blocks)
    scheduler = Scheduler(BlockPool(sequences * blocks), limits, table)
    stepper = Stepper(scheduler, NoRunner(), NoSampler(), (7,), MaskPool(50, (7,)))
    for index in range(sequences):
        stepper.add(_request(index, prompt, tokens))
    while len(scheduler.waiting):
        stepper.step()
    rounds = (tokens - PAGE) // 64 - 1
    return min(_mean_of_64(stepper) for _ in range(rounds))


def _mean_of_64(stepper: Stepper[None]) -> float:
    started = time.thread_time()
    for _ in range(64):
        stepper.step()
    return (time.thread_time() - started) / 64


def _request(index: int, prompt: int, tokens: int) -> CoreRequest:
    return CoreRequest(
        id=f"request-{index}",
        prompt_ids=(index, *range(prompt - 1)),
        max_new_tokens=tokens,
        sampling=Sampling(),
        logprobs=LogprobsMode.PROCESSED,
        top_n_tokens=0,
        prompt_logprobs=False,
    )


if __name__ == "__main__":
    for count in (1, 8, 32, 256):
        seconds = step_seconds(count)
        print(f"{count:4} sequences: {seconds * 1e6:7.1f} us a step, {seconds * 1e6 / count:5.2f} us each")
