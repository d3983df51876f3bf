"""A core made when it is loaded."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from inference.config import EngineConfig
from inference.core import Core, FrameSink
from inference.errors import ModelUnavailable
from inference.process.deferred import DeferredCore, torch_core
from inference.types import CoreRequest, LogprobsMode, ModelInfo, Sampling

REQUEST = CoreRequest(
    id="r",
    prompt_ids=(1,),
    max_new_tokens=1,
    sampling=Sampling(),
    logprobs=LogprobsMode.RAW,
    top_n_tokens=0,
    prompt_logprobs=False,
)


class Recorder:
    """A core that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.alive = True

    def load(self, progress: object) -> ModelInfo:
        raise ModelUnavailable("no model")

    def start(self, sink: FrameSink) -> None:
        self.told.append(sink)

    def submit(self, request: CoreRequest) -> None:
        self.told.append(request)

    def abort(self, request_id: str) -> None:
        self.told.append(request_id)

    def stop(self) -> None:
        self.told.append("stop")
        self.alive = False


def test_everything_goes_to_the_core_that_was_made() -> None:
    recorder = Recorder()
    core: Core = DeferredCore(lambda: recorder)
    with pytest.raises(ModelUnavailable, match="no model"):
        core.load(print)
    core.start(print)
    core.submit(REQUEST)
    core.abort("r")
    alive = [core.alive]
    core.stop()
    assert [*alive, core.alive] == [True, False]
    assert recorder.told == [print, REQUEST, "r", "stop"]


def test_before_the_load_nothing_is_made_and_stopping_is_harmless() -> None:
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    core = DeferredCore(make)
    assert not core.alive
    core.stop()
    assert made == []


def test_a_server_is_made_without_torch() -> None:
    code = """
import sys
from handlers.serving.serve import make_engine
from handlers.settings.table import Settings
make_engine(Settings())
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inference.engine.engine", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModelUnavailable, match=r"torch is not installed, .* install Parley with its extra `engine`"
    ):
        torch_core(EngineConfig())


def test_without_a_place_for_temporary_files_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(ModelUnavailable, match="set TMPDIR"):
        torch_core(EngineConfig())
