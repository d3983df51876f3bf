"""The faults of a soak: each is brought about in a running server, which has to come back by itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.client_faults import deaf_clients
from tests.faults.ledger import End
from tests.faults.poison import CRASHES, HANGS, NEEDS_MEMORY, RAISES
from tests.faults.server import Server
from tests.faults.traffic import ask, body

STORM = 150  # clients at once
DEAF_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong."""

    name: str
    bring: Callable[[Server], Awaitable[object]]
    kills: bool = False  # a process ends by it


def _signal(kind: str, number: signal.Signals) -> Callable[[Server], Awaitable[object]]:
    async def bring(server: Server) -> None:
        lost = random.choice(server.of(kind))
        os.kill(lost, number)

        async def replaced() -> bool:
            others = server.of(kind)
            return (
                bool(others) and lost not in others and (await ask(server.port, body(2))).end is End.FINISHED
            )

        await server.until(replaced, f"another {kind} runs")

    return bring


def _poison(seed: int) -> Callable[[Server], Awaitable[object]]:
    return lambda server: ask(server.port, body(20, seed=seed))


async def _storm(server: Server) -> None:
    await asyncio.gather(*(ask(server.port, body(200), leave_after=1 + at % 5) for at in range(STORM)))


async def _crowd(server: Server) -> None:
    await asyncio.gather(*(ask(server.port, body(30)) for _ in range(2 * STORM)))


async def _deaf(server: Server) -> None:
    for each in await deaf_clients(server):
        await asyncio.sleep(DEAF_SECONDS / 4)
        each.close()


FAULTS = (
    Fault("engine killed -9", _signal("engine", signal.SIGKILL), kills=True),
    Fault("engine stopped", _signal("engine", signal.SIGSTOP), kills=True),
    Fault("a step that doesn't end", _poison(HANGS), kills=True),
    Fault("native code crashes", _poison(CRASHES), kills=True),
    Fault("API worker killed -9", _signal("worker", signal.SIGKILL), kills=True),
    Fault("API worker stopped", _signal("worker", signal.SIGSTOP), kills=True),
    Fault("a step raises", _poison(RAISES)),
    Fault("no memory for large steps", _poison(NEEDS_MEMORY)),
    Fault(f"{STORM} clients disconnect", _storm),
    Fault(f"{2 * STORM} clients at once", _crowd),
    Fault("clients that don't read", _deaf),
)
