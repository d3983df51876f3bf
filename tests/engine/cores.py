"""Runs requests through a `TorchCore` and collects what it says."""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.kernels.native import open_library
from inference.step_stats import StepStats
from inference.types import (
    CompiledGrammar,
    CoreFailure,
    CoreOutput,
    CoreRequest,
    Frame,
    LogprobsMode,
    ModelInfo,
    Sampling,
)

GREEDY = Sampling()
SECONDS = 60


def request(
    id: str,
    prompt: tuple[int, ...],
    *,
    tokens: int = 20,
    sampling: Sampling = GREEDY,
    logprobs: LogprobsMode = LogprobsMode.RAW,
    top: int = 0,
    prompt_logprobs: bool = False,
    grammar: CompiledGrammar | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    owner: str = "",
    salt: str = "",
    adapter: int = -1,
) -> CoreRequest:
    """Return a request with the defaults that most tests want."""
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=tokens,
        min_new_tokens=min_tokens,
        ignore_eos=ignore_eos,
        sampling=sampling,
        logprobs=logprobs,
        top_n_tokens=top,
        prompt_logprobs=prompt_logprobs,
        prompt_top_n_tokens=top if prompt_logprobs else 0,
        grammar=grammar,
        owner=owner,
        salt=salt,
        adapter=adapter,
    )


@dataclass
class Heard:
    """All that a core said, by request."""

    outputs: dict[str, list[CoreOutput]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stats: list[StepStats] = field(default_factory=list)

    def add(self, frame: Frame) -> None:
        """Take one frame; what comes after a request's end is an error."""
        for output in frame.outputs:
            assert not self.ended(output.id), f"{output.id} had ended"
            if isinstance(output, CoreFailure):
                self.failures[output.id] = output.message
            else:
                self.outputs.setdefault(output.id, []).append(output)
        if frame.stats is not None:
            self.stats.append(frame.stats)

    def ended(self, id: str) -> bool:
        """Return whether a request has had its terminal output."""
        said = self.outputs.get(id)
        return id in self.failures or (said is not None and said[-1].finish is not None)

    def tokens(self, id: str) -> list[int]:
        """Return the tokens of a request."""
        return [output.token_id for output in self.outputs[id]]


class Session:
    """A core that was loaded and, when it is asked something, started."""

    def __init__(self, config: EngineConfig, *, device_path: bool = False) -> None:
        self.progress: list[str] = []
        self.core = TorchCore(config, device_path=device_path)
        self.info: ModelInfo = self.core.load(self.progress.append)
        self.frames: queue.Queue[Frame] = queue.Queue()

    def run(self, requests: Iterable[CoreRequest]) -> Heard:
        """Return what the core says until all requests have ended; the first step sees them all."""
        heard = Heard()
        wanted = list(requests)
        with self.core._wake:  # so that it takes them at once, also where it runs already
            for each in wanted:
                self.core.submit(each)
        while not all(heard.ended(each.id) for each in wanted):
            self.listen(heard)
        return heard

    def submit(self, request: CoreRequest) -> None:
        """Queue a request, while others may run."""
        self.core.submit(request)

    def listen(self, heard: Heard) -> set[str]:
        """Add the next frame to what was heard, and return whose it was."""
        if not self.core.alive:
            self.core.start(self.frames.put)
        frame = self.frames.get(timeout=SECONDS)
        heard.add(frame)
        return {output.id for output in frame.outputs}

    def idle_seconds(self) -> float:
        """Return the processor time that this process takes in a second, in which the core is silent."""
        gc.collect()  # of what other tests have left nothing is cleared away meanwhile
        before = time.process_time()
        try:
            frame = self.frames.get(timeout=1)
        except queue.Empty:
            return time.process_time() - before
        raise AssertionError(f"the core isn't silent: {frame}")

    @property
    def level(self) -> str:
        """Return the level without the reasons why it isn't a better one."""
        return self.info.level.partition(":")[0]

    def close(self) -> None:
        """Stop the core."""
        self.core.stop()


def best(native: str, otherwise: str) -> str:
    """Return which of two things is to be seen: with the native kernels, or where they weren't built."""
    return otherwise if open_library() is None else native


def config(directory: Path, adapters: tuple[str, ...] = (), **settings: int | bool | None) -> EngineConfig:
    """Return the configuration of a model in a directory, on one thread of this process."""
    values: dict[str, object] = {"threads": 1, "separate_process": False, **settings}
    return EngineConfig(model=ModelConfig(model_id=str(directory), adapters=adapters), **values)  # type: ignore[arg-type]
