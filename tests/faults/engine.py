"""A program for `EngineProcess`: the real engine, in which requests with certain seeds bring faults about."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from inference.config import EngineConfig
from inference.core import FrameSink, LocalCore
from inference.engine.engine import TorchCore
from inference.process.child import main
from inference.sequences.state import Pieces
from tests.faults.launch import CLOCK, jump
from tests.faults.poison import CRASHES, HANGS, NEEDS_MEMORY, RAISES, SLOW, TOO_LARGE


class FaultyRunner:
    """Computes as another one does, but for the faults that its sequences ask for."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Any:
        """Compute, or not."""
        seeds = [chunk.sequence.request.sampling.seed for chunk in pieces.chunks]
        if HANGS in seeds:
            while True:
                sum(range(1000))
        if SLOW in seeds:
            time.sleep(0.05)
        if CRASHES in seeds:
            ctypes.string_at(0)
        if RAISES in seeds:
            raise ArithmeticError("a fault of the model's code")
        if TOO_LARGE in seeds or (NEEDS_MEMORY in seeds and len(seeds) > 2):
            raise MemoryError(f"no room for a step of {len(seeds)} sequences")
        return self._runner.run(pieces, tokens_only=tokens_only)


class FaultyCore(TorchCore):
    """The engine, with a runner in which things go wrong."""

    def start(self, sink: FrameSink) -> None:
        """Begin to step."""
        assert self._stepper is not None
        self._stepper._runner = FaultyRunner(self._stepper._runner)
        super().start(sink)


def make_core(config: EngineConfig) -> LocalCore:
    """Return the engine."""
    return FaultyCore(config)


if __name__ == "__main__":
    if os.environ.get(CLOCK):
        jump()
    main(sys.argv[1:], make_core)
