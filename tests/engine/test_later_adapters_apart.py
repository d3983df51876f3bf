"""Adapters that come while the server runs are every API worker's at once, and the next engine's, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.random_adapters import save_adapters
from inference.config import EMBEDDED_MODEL
from tests.unit.handlers.serving.test_workers import REAL, Live, server, until

pytestmark = pytest.mark.slow
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PARAMETERS = {"max_new_tokens": 24, "details": True, "decoder_input_details": True, "do_sample": False}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("later") / "allowed"
    save_adapters(EMBEDDED_MODEL, root, count=2, rank=8)
    return root


@pytest.fixture(scope="module")
def live(root: Path) -> Iterator[Live]:
    flags = ("--lora-directory", str(root), "--enable-prefill-logprobs", "--compute-threads", "1")
    with server(*flags, code=REAL) as live:
        yield live


def scored(live: Live, adapter: str | None, prompt: str = "The weather is") -> Any:
    """Return the tokens of a text with their scores; the status where it is refused."""
    body = {"inputs": prompt, "parameters": {**PARAMETERS, "adapter_id": adapter}}
    answer = live.post(body)
    return answer.json()["details"]["tokens"] if answer.status_code == 200 else answer.status_code


def everywhere(live: Live, adapter: str) -> list[Any]:
    """Return what each of the workers makes of an adapter's name, and whether it lists it."""
    found = []
    for worker in live.workers():
        with live.only(worker):
            listed = [each["id"] for each in live.get("/v1/models").json()["data"]]
            found.append((scored(live, adapter), adapter in listed))
    return found


def test_all_workers_know_it_as_soon_as_it_is_answered_and_none_afterwards(live: Live, root: Path) -> None:
    alone = scored(live, None)
    for turn in range(3):
        assert live.post({"lora_name": "sql", "lora_path": str(turn % 2)}, LOAD).status_code == 200
        first, second = everywhere(live, "sql")
        assert first == second == (first[0], True)
        assert first[0] not in (422, alone)
        assert live.post({"lora_name": "sql"}, UNLOAD).status_code == 200
        assert everywhere(live, "sql") == [(422, False)] * 2
    flags = ("--lora-adapters", f"sql={root / '0'}", "--enable-prefill-logprobs", "--compute-threads", "1")
    with server(*flags, code=REAL) as from_start:
        assert scored(from_start, "sql") == first[0]


def test_an_engine_that_is_started_again_has_what_the_one_before_had(live: Live) -> None:
    assert live.post({"lora_name": "kept", "lora_path": "1"}, LOAD).status_code == 200
    expected = everywhere(live, "kept")
    (engine,) = live.children("inference.process")
    os.kill(engine, signal.SIGKILL)
    until(lambda: live.children("inference.process") not in ([], [engine]), live)
    until(lambda: live.get("/health").status_code == 200, live)
    for worker in live.workers():
        with live.only(worker):
            until(lambda: live.get("/health").status_code == 200, live)
    assert everywhere(live, "kept") == expected
    assert live.post({"lora_name": "kept"}, UNLOAD).status_code == 200
    assert everywhere(live, "kept") == [(422, False)] * 2


def test_a_worker_that_comes_later_knows_it_and_one_that_dies_is_not_waited_for(live: Live) -> None:
    assert live.post({"lora_name": "early", "lora_path": "0"}, LOAD).status_code == 200
    first, second = live.workers()
    os.kill(first, signal.SIGSTOP)  # so that it can't hear of what comes
    with live.streaming({"inputs": "x", "parameters": {"max_new_tokens": 2}}):
        pass
    os.kill(first, signal.SIGKILL)
    assert live.post({"lora_name": "later", "lora_path": "1"}, LOAD).status_code == 200
    until(lambda: len(live.workers()) == 2 and first not in live.workers(), live)
    (new,) = set(live.workers()) - {second}
    with live.only(new):
        until(lambda: live.get("/health").status_code == 200, live)
    for name in ("early", "later"):
        one, other = everywhere(live, name)
        assert one == other == (one[0], True)
        assert live.post({"lora_name": name}, UNLOAD).status_code == 200
