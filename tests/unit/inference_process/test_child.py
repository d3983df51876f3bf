"""What an engine's process tells to whom, in which order."""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from inference.config import EngineConfig
from inference.ipc.control import Control
from inference.ipc.messages import Configuration
from inference.process import child
from inference.process.child import Engine
from inference.process.server import EngineServer
from inference.types import ModelInfo


class Served(Exception):
    """The core would run now."""


class QuickCore:
    """A core that has loaded its model at once."""

    def load(self, progress: object) -> ModelInfo:
        """Return a model that nobody looks at."""
        return cast(ModelInfo, SimpleNamespace())

    def start(self, sink: object) -> None:
        """Begin nothing."""

    def join(self) -> None:
        """End the test's part of the process's life."""
        raise Served


def test_the_supervisor_hears_of_the_model_before_anybody_can_use_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else one that is killed as soon as it is used would be started again without knowing its commit."""
    told: list[str] = []
    line = cast(Control, SimpleNamespace(send=lambda message: told.append("supervisor")))
    monkeypatch.setattr(child, "_seldom_collecting", nullcontext)
    monkeypatch.setattr(EngineServer, "ready", lambda self, core, model: told.append("users"))
    configuration = Configuration(EngineConfig(), os.getpid(), "/nowhere", {})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "engine"))
        listening.listen()
        engine = Engine(configuration, line, listening, cast(child.MakeCore, lambda config: QuickCore()))
        with pytest.raises(Served):
            engine._run()
        engine._server.start()
        engine._server.close()
    assert told == ["supervisor", "users"]
