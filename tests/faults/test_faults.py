"""Faults, with few requests each: nothing that was accepted is lost, and the server goes on or ends in order.

Deaths of API workers and of the first process are tests/unit/handlers/serving/test_workers.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.faults import life_faults
from tests.faults.__main__ import FLAGS, OWN, SHARED, Fault, OwnServer
from tests.faults.server import Server

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

ELSEWHERE = (life_faults.worker_lost, life_faults.parent_killed)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server(runner: asyncio.Runner) -> Iterator[Server]:
    """Serve through one fault after another: it has to survive all of them."""
    server = Server(*FLAGS)
    try:
        runner.run(server.ready())
        yield server
    finally:
        runner.run(server.close())


@pytest.mark.parametrize("fault", SHARED, ids=[fault.bring.__name__ for fault in SHARED])
def test_a_server_survives(fault: Fault, server: Server, runner: asyncio.Runner) -> None:
    ledger = runner.run(fault.bring(server, fault.quick))
    print(ledger)
    assert ledger.wrong == []
    assert ledger.sent > 0


@pytest.mark.parametrize(
    "fault", [each for each in OWN if each.bring not in ELSEWHERE], ids=lambda each: each.bring.__name__
)
def test_a_server_keeps_its_promises_when(fault: OwnServer, runner: asyncio.Runner) -> None:
    ledger = runner.run(fault.bring(fault.quick))
    print(ledger)
    assert ledger.wrong == []
    assert ledger.sent > 0
