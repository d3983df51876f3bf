"""What generates texts in this process, to be measured in turn: the engine, and transformers' own code."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.inprocess import SECONDS, greedy_request
from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.machine import usable_cores
from inference.types import CoreFailure, Frame


class Parley:
    """The engine, in this process."""

    name = "parley"

    def __init__(self, directory: Path, quantize: str | None = None, **settings: Any) -> None:
        """`settings` are those of EngineConfig."""
        model = ModelConfig(model_id=str(directory), quantize=quantize)
        self._core = TorchCore(EngineConfig(model=model, **settings))
        info = self._core.load(print)
        self.level, self.threads = info.level, torch.get_num_threads()
        self._frames: queue.Queue[Frame] = queue.Queue()
        self._core.start(self._frames.put)
        self._runs = 0

    def run(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
        """Return what is said to prompts that come at once, and how many seconds that takes."""
        self._runs += 1
        said: dict[str, list[int]] = {f"{self._runs}.{at}": [] for at in range(len(prompts))}
        began = time.perf_counter()
        for name, prompt in zip(said, prompts, strict=True):
            self._core.submit(greedy_request(name, tuple(prompt), tokens))
        while any(len(text) < tokens for text in said.values()):
            for output in self._frames.get(timeout=SECONDS).outputs:
                if isinstance(output, CoreFailure):
                    raise RuntimeError(output.message)
                said[output.id].append(output.token_id)
        return list(said.values()), time.perf_counter() - began

    def close(self) -> None:
        """End the engine."""
        self._core.stop()


class Transformers:
    """transformers' own `generate`, of prompts that are equally long, so that none is padded."""

    name = "transformers"

    def __init__(self, directory: Path, loader: Any = AutoModelForCausalLM) -> None:
        """`loader` is the class that loads the model."""
        self._model = loader.from_pretrained(directory, dtype=torch.float32).eval()

    def run(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
        """Return what is said to prompts, and how many seconds that takes."""
        threads = torch.get_num_threads()
        torch.set_num_threads(usable_cores())
        began = time.perf_counter()
        ids = torch.tensor(prompts)
        text = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        seconds = time.perf_counter() - began
        torch.set_num_threads(threads)
        return text[:, -tokens:].tolist(), seconds
