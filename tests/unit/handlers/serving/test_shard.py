"""What `parley shard` takes of its own machine's settings, and what it says of the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from handlers import cli
from handlers.serving import logs, shard
from handlers.settings.reading import Reading, read
from inference import last_resorts
from inference.config import EngineConfig, ModelConfig
from inference.shards.messages import Own, Task

be_shard = cast(Callable[[Reading], None], shard.shard)  # it ends with the process; here it returns


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, Own]]:
    """Return what would be waited for, and as what."""
    found: list[tuple[str, int, Own]] = []

    def note(*told: Any) -> None:
        found.append(told)

    monkeypatch.setattr(shard, "be_a_shard", note)
    monkeypatch.setattr(logs, "configure", lambda *words, **more: None)
    monkeypatch.setattr("signal.signal", lambda *words: None)
    monkeypatch.setattr(last_resorts, "install", lambda: None)
    for name in ("end_by_hangup", "prepare_environment"):
        monkeypatch.setattr(shard, name, lambda: None)
    return found


def test_its_own_machine_is_known_to_itself(
    asked: list[tuple[str, int, Own]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"MODEL_ID": "/models/m", "PARLEY_COMPUTE_THREADS": "3", "HUGGINGFACE_HUB_CACHE": "/hub"}
    monkeypatch.setattr(os, "environ", environment)
    with caplog.at_level(logging.WARNING):
        cli.main(["shard", "--master-addr", "10.0.0.1"])
    assert asked == [("10.0.0.1", 29500, Own("/models/m", "/hub", 3))]
    assert caplog.messages == []


def test_what_the_server_decides_is_told_to_have_no_effect(
    asked: list[tuple[str, int, Own]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        be_shard(read({"max_total_tokens": [("--max-total-tokens", "512")]}, {"PORT": "81"}, serving=False))
    assert {message.partition(" has no effect here")[0] for message in caplog.messages} == {
        "--max-total-tokens 512",
        "PORT=81",
    }
    assert len(asked) == 1


def test_what_it_knows_itself_goes_before_what_it_hears() -> None:
    heard = EngineConfig(model=ModelConfig(model_id="org/m", cache_dir="/first", dtype="float32"), threads=8)
    task = Task(heard, 1, 2, None, None, None, ("10.0.0.1", 1), {})
    own = Own("/there", None, 3).task(task)
    assert (own.engine.model.model_id, own.engine.model.cache_dir) == ("/there", "/first")
    assert (own.threads, own.engine.threads, own.engine.model.dtype) == (3, 3, "float32")
    assert Own().task(task).threads is None  # as many as there are cores here, whatever the first one has
