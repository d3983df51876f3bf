"""The faults of a soak: each is brought about in a running server, which has to come back by itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.client_faults import deaf_clients
from tests.faults.ledger import Answer, End
from tests.faults.poison import CRASHES, HANGS, NEEDS_MEMORY, RAISES
from tests.faults.server import Server
from tests.faults.traffic import ask, body

STORM = 150  # clients at once
DEAF_SECONDS = 5.0

Bring = Callable[[Server], Awaitable[list[Answer]]]

_DEAD = frozenset({End.FAILED, End.UNAVAILABLE})  # what requests of a dead engine may come to
_BROKEN = frozenset({End.LOST, End.CLOSED, End.UNAVAILABLE})  # and those of a dead API worker
_TOLD = frozenset({End.FAILED})
_FULL = frozenset({End.OVERLOADED})
_NOTHING: frozenset[End] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that goes wrong, and what may come of it."""

    name: str
    ends: frozenset[End]  # what requests may come to, beside what they would anyway
    logs: bool = False  # errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Cause):
    """What a soak makes go wrong."""

    bring: Bring  # returns what its own requests came to
    own: frozenset[End]  # what those may come to
    kills: bool = False  # a process ends by it


def _signal(kind: str, number: signal.Signals) -> Bring:
    async def bring(server: Server) -> list[Answer]:
        before = server.of(kind)
        lost = random.choice(before)
        os.kill(lost, number)
        return await _replaced(server, kind, lost, len(before))

    return bring


async def _replaced(server: Server, kind: str, lost: int, count: int) -> list[Answer]:
    """Wait until there are as many processes of a kind again, of which one is new, and a text is made."""
    answers: list[Answer] = []

    async def replaced() -> bool:
        others = server.of(kind)
        if len(others) < count or lost in others:
            return False
        answers.append(await ask(server.port, body(2)))
        return answers[-1].end is End.FINISHED

    await server.until(replaced, f"another {kind} runs")
    return answers


def _deadly(seed: int) -> Bring:
    """Return what brings a poison about that ends the engine; its end is told before there is another one."""

    async def bring(server: Server) -> list[Answer]:
        lost = server.engine()
        told = await _poison(seed)(server)
        await _replaced(server, "engine", lost, 1)
        return told

    return bring


def _poison(seed: int) -> Bring:
    async def bring(server: Server) -> list[Answer]:
        answers: list[Answer] = []

        async def taken() -> bool:
            answers[:] = [await ask(server.port, body(20, seed=seed))]
            return answers[0].end not in (End.UNAVAILABLE, End.OVERLOADED)  # of the fault before

        await server.until(taken, "the request with the fault is taken")
        return answers

    return bring


async def _storm(server: Server) -> list[Answer]:
    leaving = (ask(server.port, body(200), leave_after=1 + at % 5) for at in range(STORM))
    return await asyncio.gather(*leaving)


async def _crowd(server: Server) -> list[Answer]:
    return await asyncio.gather(*(ask(server.port, body(30)) for _ in range(2 * STORM)))


async def _deaf(server: Server) -> list[Answer]:
    for each in await deaf_clients(server):
        await asyncio.sleep(DEAF_SECONDS / 4)
        each.close()
    return []


def _engine(name: str, bring: Bring, own: frozenset[End] = _DEAD) -> Fault:
    return Fault(name=name, bring=bring, own=own, ends=_DEAD, logs=True, kills=True)


def _worker(name: str, number: signal.Signals) -> Fault:
    bring, own = _signal("worker", number), _BROKEN | {End.FINISHED}
    return Fault(name=name, bring=bring, own=own, ends=_BROKEN, logs=True, kills=True)


def _harmless(
    name: str, bring: Bring, own: frozenset[End], ends: frozenset[End] = _NOTHING, *, logs: bool = False
) -> Fault:
    return Fault(name=name, bring=bring, own=own, ends=ends, logs=logs)


FAULTS = (
    _engine("engine killed -9", _signal("engine", signal.SIGKILL), _DEAD | {End.FINISHED}),
    _engine("engine stopped", _signal("engine", signal.SIGSTOP), _DEAD | {End.FINISHED}),
    _engine("a step that doesn't end", _deadly(HANGS), _TOLD),
    _engine("native code crashes", _deadly(CRASHES), _TOLD),
    _worker("API worker killed -9", signal.SIGKILL),
    _worker("API worker stopped", signal.SIGSTOP),
    _harmless("a step raises", _poison(RAISES), _TOLD, logs=True),
    _harmless("no memory for large steps", _poison(NEEDS_MEMORY), frozenset({End.FINISHED}), logs=True),
    _harmless(f"{STORM} clients disconnect", _storm, _FULL | {End.LEFT}, _FULL),
    _harmless(f"{2 * STORM} clients at once", _crowd, _FULL | {End.FINISHED}, _FULL),
    _harmless("clients that don't read", _deaf, _NOTHING),
)
STANDSTILL = Cause(name="the machine stood still", ends=frozenset(End), logs=True)
