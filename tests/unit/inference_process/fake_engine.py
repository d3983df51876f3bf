"""A program for `EngineProcess`: an engine without torch, that behaves as the model's name says."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable

from inference.config import EngineConfig
from inference.core import FrameSink
from inference.fakes.core import FakeCore, FakeModel
from inference.process.child import main
from inference.types import CoreRequest, ModelInfo

PROGRAM = ("-m", "tests.unit.inference_process.fake_engine")
EOS, TOKENS = 2, tuple(range(40, 90))
HANGING, HANG = 666, threading.Condition()
PAUSE_SECONDS = 0.002  # of a step: ten seconds for the longest answer


class NamedCore(FakeCore):
    """A core whose model's name says what goes wrong."""

    def __init__(self, config: EngineConfig) -> None:
        self._name = config.model.name
        super().__init__(
            FakeModel(
                tokens=TOKENS,
                eos_token_id=EOS,
                id=self._name,
                step_seconds=PAUSE_SECONDS,
                max_total_tokens=100_000,
                shortest=5_000,
                longest=5_000,
                unavailable="there is no such model" if self._name == "missing" else None,
                fails=self._endure,
            )
        )

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Load, or fail as the name says."""
        progress(f"looking for {self._name}")
        logging.getLogger("inference.fake_engine").info("loading %s", self._name)
        print("written to standard output", flush=True)
        if self._name == "dies":
            os._exit(7)
        if self._name == "raises":
            raise MemoryError("no room")
        return super().load(progress)

    def _endure(self, request: CoreRequest) -> None:
        """Never return from the step that takes a request of this many tokens in."""
        if request.max_new_tokens == HANGING:
            with HANG:
                HANG.wait()

    def start(self, sink: FrameSink) -> None:
        """Begin to step; say whether the collector still looks at what loading made."""
        state = "frozen" if gc.get_freeze_count() > len(gc.get_objects()) else "looked at"
        logging.getLogger("inference.fake_engine").info("what was loaded is %s", state)
        super().start(sink)


if __name__ == "__main__":
    main(sys.argv[1:], NamedCore)
