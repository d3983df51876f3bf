"""How a server with replicas ends where its cluster answers no more."""

from __future__ import annotations

import importlib
import logging
import os
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
