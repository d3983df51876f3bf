"""The engine in this process, without HTTP: how long its steps take with a given batch and context."""

from __future__ import annotations

import itertools
import json
import queue
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.config import EngineConfig
from inference.engine.engine import TorchCore
from inference.types import CoreFailure, CoreRequest, Frame, LogprobsMode, ModelInfo, Sampling

ENDLESS = 1 << 20  # tokens: requests end when they are told to
EVERY = 4  # steps something is measured beside them: the median step has warm caches before it
SECONDS = 600  # without a frame; then the engine hangs


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that did nothing but continue `batch` sequences."""

    batch: int
    context: float  # tokens of a sequence, the mean
    seconds: float  # of a step, the median
    least: float
    prefill_tokens_per_second: float | None = None  # of the prompts before; None where none were computed
    beside: float | None = None  # what was measured between the steps, the median


@dataclass(frozen=True, slots=True)
class _Ended:
    """A step's frame, when it came, when the engine went on, and what was measured in between."""

    frame: Frame
    at: float
    resumed: float
    measured: float | None


class Engine:
    """A loaded engine, driven step by step; `beside` measures something while it rests between two steps."""

    def __init__(self, core: TorchCore, info: ModelInfo, beside: Callable[[], float] | None = None) -> None:
        self.info = info
        self._core = core
        self._frames: queue.Queue[_Ended] = queue.Queue()
        self._ids = map(str, itertools.count())
        self._turns = itertools.count()
        self._beside = beside
        core.start(self._put)

    def _put(self, frame: Frame) -> None:
        now = time.perf_counter()
        due = self._beside is not None and next(self._turns) % EVERY == 0
        measured = self._beside() if self._beside and due else None
        self._frames.put(_Ended(frame, now, time.perf_counter(), measured))

    def decode(
        self, batches: list[int], context: int, count: int, adapters: Sequence[int] = (-1,)
    ) -> Iterator[Steps]:
        """Yield `count` steps of each batch size, the largest first, after prompts of `context` tokens.

        The prompts are computed once: sequences are given up until the next batch size is left. They take
        the adapters in turn.
        """
        batches = sorted(batches, reverse=True)
        random_ = random.Random(f"{context}")
        ids = [next(self._ids) for _ in range(batches[0])]
        length = min(ENDLESS, self.info.max_total_tokens - context)
        prompts = [self._prompt(random_, context) for _ in ids]
        began = time.perf_counter()
        for id, prompt, adapter in zip(ids, prompts, itertools.cycle(adapters), strict=False):
            self._core.submit(replace(greedy_request(id, prompt, length), adapter=adapter))
        rate = None
        for batch in batches:
            for id in ids[batch:]:
                self._core.abort(id)
            del ids[batch:]
            steps, first = self._steps(batch, count)
            if rate is None:
                rate = batches[0] * context / (first - began)
            mean = (
                statistics.fmean(ended.frame.stats.kv_tokens for _, ended in steps if ended.frame.stats)
                / batch
            )
            seconds = [time for time, _ in steps]
            measured = [ended.measured for _, ended in steps if ended.measured is not None]
            beside = statistics.median(measured) if measured else None
            yield Steps(batch, mean, statistics.median(seconds), min(seconds), rate, beside)
        self._end(ids)

    def _steps(self, batch: int, count: int) -> tuple[list[tuple[float, _Ended]], float]:
        """Return steps of just this batch with their seconds, and when the first of them ended."""
        steps: list[tuple[float, _Ended]] = []
        before: float | None = None  # when this one could begin, if the step before was one of them, too
        first = 0.0
        while len(steps) < count:
            ended = self._frames.get(timeout=SECONDS)
            stats = ended.frame.stats
            for output in ended.frame.outputs:
                if isinstance(output, CoreFailure):
                    raise RuntimeError(output.message)
                if output.finish and len(steps) < count:
                    raise RuntimeError(f"a sequence ended before {count} steps of {batch} were seen")
            alone = stats is not None and not stats.prefill_tokens and stats.decode_sequences == batch
            if alone and before is not None:
                steps.append((ended.at - before, ended))
            first = first or (ended.at if alone else 0.0)
            before = ended.resumed if alone else None
        return steps, first

    def _end(self, ids: list[str]) -> None:
        for id in ids:
            self._core.abort(id)
        self._core.submit(greedy_request(next(self._ids), self._prompt(random.Random(0), 1), 1))
        while not any(output.finish for output in self._outputs()):
            pass

    def _outputs(self) -> list[Any]:
        return list(self._frames.get(timeout=SECONDS).frame.outputs)

    def _prompt(self, random_: random.Random, count: int) -> tuple[int, ...]:
        return tuple(random_.randrange(3, self.info.vocabulary_size) for _ in range(count))


@contextmanager
def engine(config: EngineConfig, beside: Callable[[], float] | None = None) -> Iterator[Engine]:
    """Load the engine, yield it, and free it."""
    core = TorchCore(config)
    info = core.load(print)
    try:
        yield Engine(core, info, beside)
    finally:
        core.stop()


def with_context(model: Path, directory: Path, tokens: int) -> Path:
    """Return a directory with the model's files, whose configuration allows a longer context."""
    for file in model.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": tokens}))
    return directory


def greedy_request(id: str, prompt: tuple[int, ...], tokens: int) -> CoreRequest:
    """Return a request for exactly so many tokens."""
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=tokens,
        ignore_eos=True,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
    )
