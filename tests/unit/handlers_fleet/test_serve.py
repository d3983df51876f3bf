"""How a server with replicas ends where its cluster answers no more."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import warnings
from typing import Any

import pytest

from handlers.serving.serve import Life
from handlers.settings.table import Settings
from tests.unit.handlers_fleet.local import in_front

pytest.importorskip("ray")
pytestmark = pytest.mark.anyio


@pytest.fixture
def serve() -> Any:
    """Return the module, whose imports of Ray's warn of Ray's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("handlers.fleet.serve")


@pytest.mark.parametrize("left", [True, False])
async def test_a_server_that_could_not_leave_its_cluster_waits_for_nothing(
    left: bool, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, codes = threading.Event(), list[int]()

    def exit(code: int) -> None:
        codes.append(code)
        ended.set()

    def refuse(*_: Any) -> None:
        raise RuntimeError("there is no cluster")

    life = Life(loaded=lambda: None, unavailable=lambda _: None)
    opening = serve.Opening(Settings(), in_front(None)[0], life)
    monkeypatch.setattr(serve, "END_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", exit)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(opening._cluster, "place", refuse)
    monkeypatch.setattr(opening._cluster, "leave", lambda: left)
    async with opening.lifespan(None):
        pass
    assert ended.wait(10 if not left else 0.1) is not left
    assert codes == ([] if left else [0])


@pytest.mark.parametrize("fails", [True, False])
def test_a_cluster_that_ray_fails_to_leave_is_not_left(
    fails: bool, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray would try again as the interpreter ends, and wait for a minute then."""

    def shutdown() -> None:
        if fails:
            raise RuntimeError("the cluster is gone")

    cluster = importlib.import_module("handlers.fleet.cluster")
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "shutdown", shutdown)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert cluster.Cluster().leave() is not fails


def test_a_server_that_has_ended_waits_a_bounded_time_for_ray(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, codes = threading.Event(), list[int]()

    def exit(code: int) -> None:
        codes.append(code)
        ended.set()

    for module, name in ((serve, "listen"), (serve, "run"), (signal, "signal")):
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    monkeypatch.setattr(serve, "END_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", exit)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(serve.last_resorts, "install", lambda: None)
    assert serve.serve_fleet(Settings()) == 0
    assert ended.wait(10)
    assert codes == [0]
