"""Faults of the process in which grammars are compiled: it is killed, and whatever it has begun with it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

from tests.faults.ledger import End, Ledger
from tests.faults.server import Server
from tests.faults.traffic import ask, body
from tests.processes import command_line

AT_ONCE = 4
TOLD = ("its compiler failed", "can't be started", "takes more than 5 seconds", "Model is overloaded")
PAUSE_SECONDS = 0.05
SLOW = {"type": "regex", "value": "|".join(f"[a-z]{{{at},30}}{at}" for at in range(1, 25))}


async def compiler_killed(server: Server, size: int) -> Ledger:
    """Kill the process that compiles grammars and all its forks, over and over, while grammars come."""
    ledger = Ledger("what compiles grammars is killed -9")
    wanted = body(300, prompt="Somebody without a grammar.")
    expected = await ask(server.port, wanted)
    engine = server.engine()
    stays = asyncio.create_task(ask(server.port, wanted))
    killed: list[int] = []
    killing = asyncio.create_task(_kill(server, killed))
    answers = [
        answer
        for at in range(0, size, AT_ONCE)
        for answer in await asyncio.gather(*(ask(server.port, _with(_regex(at + n))) for n in range(AT_ONCE)))
    ]
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    stayed, after = await stays, await ask(server.port, _with(_regex(size)))
    ledger.add(expected, *answers, stayed, after)
    refused = [answer for answer in answers if answer.end is not End.FINISHED]
    ledger.note(f"{len(killed)} processes were killed, {len(refused)} of {size} requests refused")
    ledger.expect(bool(killed), "processes were killed")
    ledger.expect(
        all(any(words in each.message for words in TOLD) for each in refused),
        "who was refused was told that the compiler failed, or how to come again",
    )
    ledger.expect((stayed.end, stayed.text) == (End.FINISHED, expected.text), "others got their texts")
    ledger.expect(after.end is End.FINISHED, "the next grammar is compiled")
    ledger.expect(server.engine() == engine, "the engine goes on")
    return ledger


async def _kill(server: Server, killed: list[int]) -> None:
    while True:
        compiling = [each for each in server.of("other") if "grammar.forking" in command_line(each)]
        for process in compiling if len(compiling) > 1 else ():  # one forks, the others compile
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                killed.append(process)
        await asyncio.sleep(PAUSE_SECONDS)


def _regex(at: int) -> dict[str, Any]:
    return {"type": "regex", "value": f"{SLOW['value']}|{at}"}


def _with(grammar: dict[str, Any]) -> dict[str, Any]:
    asked = body(8)
    del asked["parameters"]["min_new_tokens"]
    asked["parameters"]["grammar"] = grammar
    return asked
