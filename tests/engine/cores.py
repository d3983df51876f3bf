"""Runs requests through a `TorchCore` and collects what it says."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from inference.config import EngineConfig, ModelConfig
from inference.engine import TorchCore
from inference.types import (
    CompiledGrammar,
    CoreFailure,
    CoreOutput,
    CoreRequest,
    Frame,
    LogprobsMode,
    ModelInfo,
    Sampling,
    StepStats,
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
        grammar=grammar,
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

    def __init__(self, config: EngineConfig) -> None:
        self.progress: list[str] = []
        self.core = TorchCore(config)
        self.info: ModelInfo = self.core.load(self.progress.append)
        self.frames: queue.Queue[Frame] = queue.Queue()

    def run(self, requests: Iterable[CoreRequest]) -> Heard:
        """Return what the core says until all requests have ended; the first step sees them all."""
        heard = Heard()
        wanted = list(requests)
        for each in wanted:
            self.core.submit(each)
        if not self.core.alive:
            self.core.start(self.frames.put)
        while not all(heard.ended(each.id) for each in wanted):
            heard.add(self.frames.get(timeout=SECONDS))
        return heard

    def close(self) -> None:
        """Stop the core."""
        self.core.stop()


def config(directory: Path, **settings: int | bool | None) -> EngineConfig:
    """Return the configuration of a model in a directory, on one thread."""
    values: dict[str, object] = {"threads": 1, **settings}
    return EngineConfig(model=ModelConfig(model_id=str(directory)), **values)  # type: ignore[arg-type]
