"""Faults of the engine: it dies, hangs, raises, or finds no memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from tests.faults.ledger import Answer, End, Ledger
from tests.faults.poison import CRASHES, HANGS, NEEDS_MEMORY, RAISES, TOO_LARGE
from tests.faults.server import Server
from tests.faults.traffic import ask, body
from tests.processes import gone

STEP_TIMEOUT = "2"  # seconds, as a flag
LONG = 400  # tokens: still running when the fault comes
_DEAD = {End.FAILED, End.UNAVAILABLE}  # what requests of a dead engine may come to


async def killed(server: Server, size: int) -> Ledger:
    """Kill the engine's process while it computes for `size` streams."""
    return await _lost(
        server, Ledger("engine killed -9 under load"), size, lambda: _signal(server, signal.SIGKILL)
    )


async def stopped(server: Server, size: int) -> Ledger:
    """Stop the engine's process, which then answers nothing and doesn't end."""
    ledger = Ledger("engine stopped (SIGSTOP) under load")
    return await _lost(server, ledger, size, lambda: _signal(server, signal.SIGSTOP))


async def hangs(server: Server, size: int) -> Ledger:
    """Have a step go on for ever, which takes all of a core."""
    return await _poisoned(server, Ledger("engine busy in a step that doesn't end"), size, HANGS)


async def crashes(server: Server, size: int) -> Ledger:
    """Have native code read memory that isn't there."""
    return await _poisoned(server, Ledger("engine's native code crashes"), size, CRASHES)


async def raises(server: Server, size: int) -> Ledger:
    """Have a step raise: what it computed for fails, nothing else does, and the engine stays."""
    ledger, engine = Ledger("model's code raises in a step"), server.engine()
    bad = await ask(server.port, body(20, seed=RAISES))
    answers = await asyncio.gather(*(ask(server.port, body(20, prompt=_prompt(at))) for at in range(size)))
    ledger.add(bad, *answers)
    ledger.expect(bad.end is End.FAILED and "ArithmeticError" in bad.message, "the request was told why")
    ledger.expect(all(answer.end is End.FINISHED for answer in answers), "those that came after it finished")
    ledger.expect(server.engine() == engine, "the engine went on")
    return ledger


async def raises_beside(server: Server, size: int) -> Ledger:
    """Have steps raise by the work of a few of many requests: they fail, and no other text changes."""
    ledger, engine = Ledger("one request's work raises in a step of many"), server.engine()
    wanted = [body(LONG, prompt=_prompt(at), seed=at if at % 2 else None) for at in range(size)]
    alone = [await ask(server.port, each) for each in wanted]
    heard = [asyncio.Event() for _ in wanted]
    together = [
        asyncio.create_task(ask(server.port, each, on_event=event.set))
        for each, event in zip(wanted, heard, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in heard))
    poisoned = [body(20, prompt=_prompt(at), seed=RAISES) for at in range(3)]
    bad = await asyncio.gather(*(ask(server.port, each) for each in poisoned))
    good = await asyncio.gather(*together)
    ledger.add(*alone, *bad, *good)
    ledger.expect(all(each.end is End.FAILED for each in bad), "the bad ones failed")
    ledger.expect(all("ArithmeticError" in each.message for each in bad), "they were told why")
    ledger.expect(all(each.end is End.FINISHED for each in good), "all others finished")
    ledger.expect([each.text for each in good] == [each.text for each in alone], "texts are the same")
    ledger.expect(server.engine() == engine, "the engine went on")
    again = await server.metric("parley_step_retries")
    ledger.expect(again > 0, "steps were computed again in parts")
    ledger.note(f"{again:.0f} steps were parts of others")
    return ledger


async def no_memory(server: Server, size: int) -> Ledger:
    """Have steps of more than two sequences find no memory: all are computed, in smaller steps."""
    ledger, engine = Ledger("no memory for large steps"), server.engine()
    wanted = [body(30, prompt=_prompt(at)) for at in range(size)]
    alone = await asyncio.gather(*(ask(server.port, each) for each in wanted))
    greedy = body(60, seed=NEEDS_MEMORY)
    together = await asyncio.gather(ask(server.port, greedy), *(ask(server.port, each) for each in wanted))
    huge = await ask(server.port, body(5, seed=TOO_LARGE))
    ledger.add(*alone, *together, huge)
    ledger.expect(all(answer.end is End.FINISHED for answer in together), "every request finished")
    ledger.expect([each.text for each in together[1:]] == [each.text for each in alone], "texts are the same")
    ledger.expect(huge.end is End.FAILED and "MemoryError" in huge.message, "what never fits was told so")
    ledger.expect(server.engine() == engine, "the engine went on")
    ledger.note(f"made smaller {server.told('Memory was too short for a step')} times")
    return ledger


async def _poisoned(server: Server, ledger: Ledger, size: int, seed: int) -> Ledger:
    poison: list[asyncio.Task[Answer]] = []

    def send() -> None:
        poison.append(asyncio.create_task(ask(server.port, body(5, seed=seed))))

    await _lost(server, ledger, size, send)
    bad = await poison[0]
    ledger.add(bad)
    ledger.expect(bad.end is End.FAILED, f"the request with the fault failed, and not: {bad}")
    return ledger


async def _lost(server: Server, ledger: Ledger, size: int, fault: Callable[[], None]) -> Ledger:
    """Have streams run, bring a fault about, and see them told, and the server come back by itself."""
    engine, heard = server.engine(), [asyncio.Event() for _ in range(size)]
    streams = [
        asyncio.create_task(ask(server.port, body(LONG, prompt=_prompt(at)), on_event=event.set))
        for at, event in enumerate(heard)
    ]
    whole = [asyncio.create_task(ask(server.port, body(LONG), path="/generate")) for _ in range(2)]
    await asyncio.gather(*(event.wait() for event in heard))
    fault()
    down = await server.until(lambda: _is(server, 503, "/health"), "/health says 503")
    live, ready = await server.status("/livez"), await server.status("/readyz")
    asked = await ask(server.port, body(3))
    ledger.add(asked, *await asyncio.gather(*streams, *whole))
    up = await server.until(lambda: _is(server, 200, "/health"), "/health says 200 again")
    after = await ask(server.port, body(5))
    ledger.add(after)
    ledger.expect(ledger.ends[End.FAILED] > 0, "running requests were told")
    ledger.expect((live, ready) == (200, 503), f"/livez said 200 and /readyz 503, and not {live} and {ready}")
    ledger.expect(asked.end in _DEAD, f"a request meanwhile was refused, and not {asked.end}")
    ledger.expect(after.end is End.FINISHED, "the engine answers again")
    ledger.expect(gone(engine) and server.engine() != engine, "another engine's process runs")
    ledger.note(f"/health: 503 after {down:.2f} s, 200 again {up:.2f} s later")
    return ledger


def _signal(server: Server, number: signal.Signals) -> None:
    os.kill(server.engine(), number)


async def _is(server: Server, status: int, path: str) -> bool:
    return await server.status(path) == status


def _prompt(at: int) -> str:
    return f"Tell me something about the number {at}."
