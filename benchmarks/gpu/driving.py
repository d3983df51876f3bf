"""The engine's stepper driven in this thread: no sockets, no queue between threads, no HTTP."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.clock import Clock, synchronize
from benchmarks.gpu.models import Shape, drawn_instead_of_read, free, write_description
from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import AnyStepper, TorchCore
from inference.levels.served import Level
from inference.types import CoreFailure, CoreRequest, Frame, LogprobsMode, ModelInfo, Sampling

_WARM = 6  # steps of a batch before it is measured


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and how many tokens are wanted."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of jobs."""

    seconds: float
    texts: list[list[int]]
    logprobs: list[list[float]]
    cached: int  # tokens of prompts that were found in the prefix cache

    @property
    def rate(self) -> float:
        """Return the tokens given out a second."""
        return sum(map(len, self.texts)) / self.seconds


class TooSlow(Exception):
    """There is nothing to measure; the message says why."""


class Driver:
    """A loaded engine."""

    def __init__(self, core: TorchCore, info: ModelInfo, said: list[str], clock: Clock) -> None:
        self.info = info
        self.said = said
        self.device = torch.device(info.device_type)
        self._core: TorchCore | None = core
        self._clock = clock
        self._ids = map(str, itertools.count())

    def close(self) -> None:
        """Let go of the engine."""
        self._core = None

    @property
    def _stepper(self) -> AnyStepper:
        assert self._core is not None, "the engine isn't closed"
        assert self._core._stepper is not None, "the engine is loaded"
        return self._core._stepper

    def do(self, jobs: list[Job], sampling: Sampling | None = None) -> Done:
        """Run jobs that all come at once to their ends; raise OutOfTime."""
        ids = [next(self._ids) for _ in jobs]
        texts: dict[str, list[int]] = {id: [] for id in ids}
        logprobs: dict[str, list[float]] = {id: [] for id in ids}
        cached = 0
        synchronize(self.device)
        began = time.perf_counter()
        for id, job in zip(ids, jobs, strict=True):
            self._stepper.add(_request(id, job, sampling))
        while not self._stepper.idle:
            self._clock.need(0, "a workload")
            frame = self._step()
            cached += frame.stats.cached_tokens if frame.stats else 0
            for output in frame.outputs:
                assert not isinstance(output, CoreFailure)
                texts[output.id].append(output.token_id)
                logprobs[output.id].append(output.logprob)
        seconds = time.perf_counter() - began
        return Done(seconds, list(texts.values()), list(logprobs.values()), cached)

    def decode(
        self, batches: list[int], context: int, count: int, sampling: Sampling | None = None
    ) -> Iterator[tuple[int, float, float]]:
        """Yield batch sizes, the largest first, with the mean context and the seconds of a step, of `count`.

        The prompts are computed once: sequences are given up until the next batch size is left. They are
        so long that about `context` tokens are known when the first batch is measured.
        """
        random_ = random.Random(context)
        batches = sorted(batches, reverse=True)
        ids = [next(self._ids) for _ in range(batches[0])]
        prompts = batches[0] * context // self.info.max_batch_prefill_tokens  # steps with prompts, about
        length = max(context - prompts // 2 - _WARM - count // 2, context // 2)
        longest = self.info.max_total_tokens - context
        for id in ids:
            self._stepper.add(_request(id, Job(self.prompt(random_, length), longest), sampling))
        for batch in batches:
            for id in ids[batch:]:
                self._stepper.abort(id)
            del ids[batch:]
            self._settle(batch)
            began = time.perf_counter()
            frames = [self._step() for _ in range(count)]
            seconds = (time.perf_counter() - began) / count
            stats = frames[count // 2].stats
            assert stats is not None
            yield batch, stats.kv_tokens / batch, seconds
        for id in ids:
            self._stepper.abort(id)
        while not self._stepper.idle:
            self._step()

    def steps(self, count: int) -> None:
        """Make so many steps, whatever is in them."""
        for _ in range(count):
            self._step()
        synchronize(self.device)

    def prompt(self, random_: random.Random, tokens: int) -> tuple[int, ...]:
        """Return a prompt of random tokens."""
        return tuple(random_.choices(range(3, self.info.vocabulary_size), k=tokens))

    def _settle(self, batch: int) -> None:
        """Step until all of a batch goes on, and nothing else does."""
        warm = 0
        while warm < _WARM:
            self._clock.need(0, "prompts")
            stats = self._step().stats
            alone = stats is not None and not stats.prefill_tokens and stats.decode_sequences == batch
            warm = warm + 1 if alone else 0

    def _step(self) -> Frame:
        frame = self._stepper.step()
        for output in frame.outputs:
            if isinstance(output, CoreFailure):
                raise RuntimeError(output.message)
        return frame


@contextmanager
def driver(
    shape: Shape, device: torch.device, dtype: torch.dtype, clock: Clock, **settings: Any
) -> Iterator[Driver]:
    """Load the engine with a model of a shape, yield it, and free it; raise TooSlow."""
    said: list[str] = []
    with TemporaryDirectory() as folder, drawn_instead_of_read(shape, dtype):
        model = ModelConfig(
            model_id=str(write_description(Path(folder), shape)),
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
        )
        core = TorchCore(EngineConfig(model=model, **settings), device_path=True)
        info = core.load(said.append)
    driven = Driver(core, info, said, clock)
    gc.collect()
    gc.freeze()  # as the engine's own process does
    try:
        _refuse_slowest(info)
        yield driven
    finally:
        gc.unfreeze()
        driven.close()
        core.stop()
        del core
        free(device)


def _refuse_slowest(info: ModelInfo) -> None:
    """Raise TooSlow for levels without batches, which would use up the time of all the other parts."""
    if info.level.partition(":")[0] in (Level.SEQUENTIAL, Level.UNCACHED):
        raise TooSlow(f"the model is served one sequence at a time, at level {info.level}")


def _request(id: str, job: Job, sampling: Sampling | None) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=job.prompt,
        max_new_tokens=job.tokens,
        ignore_eos=True,
        sampling=sampling or Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
    )
