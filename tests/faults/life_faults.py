"""Faults of a server's life: it is told to end under load, its log's disk is full, its clock jumps."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from tests.faults.ledger import Answer, End, Ledger
from tests.faults.poison import SLOW
from tests.faults.server import Server, serving
from tests.faults.traffic import ask, body
from tests.processes import gone

GRACE = "5"  # seconds that running requests have, as a flag
ENDLESS = 900  # tokens
LASTING = 200  # tokens, of 50 ms each: longer than a worker that stands still is waited for
PORTION = 4  # streams that begin at once, so that either worker gets some


async def terminated(size: int) -> Ledger:
    """Send SIGTERM while short and long requests run: the short ones finish, the long ones are told."""
    ledger = Ledger("SIGTERM under load")
    async with serving("-g", GRACE, "--max-concurrent-requests", "256", "--max-batch-size", "256") as server:
        left = list(server.processes())
        ledger.expect(bool(server.sockets()), "the engine has a socket")
        streams = await _running(server, size, ENDLESS, seed=SLOW) + await _running(server, size, 5)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await server.until(lambda: _is(server, 503, "/readyz"), "/readyz says 503")
        refused = await ask(server.port, body(3))
        ledger.add(refused, *await asyncio.gather(*streams))
        code = await server.ended()
        ledger.note(
            f"ended after {time.monotonic() - began:.1f} s of {GRACE} s and a moment, exit code {code}"
        )
        late = await ask(server.port, body(3))
        ledger.add(late)
    ledger.expect(code == 0, f"the exit code is 0, and not {code}")
    ledger.expect(
        refused.end is End.UNAVAILABLE and refused.retry_after != "",
        "who came late was told when to come back",
    )
    ledger.expect(late.end is End.CLOSED, "nobody listens in the end")
    ledger.expect(ledger.ends[End.FINISHED] >= size, "the short ones finished")
    ledger.expect(ledger.ends[End.FAILED] > 0, "the long ones were told")
    await _nothing_left(ledger, left)
    ledger.expect(not server.sockets(), "no socket is left")
    return ledger


async def parent_killed(size: int) -> Ledger:
    """Kill the first process of a server: its two API workers and its engine end, and leave nothing."""
    answers, ledger = await _first_killed("two API workers", size, 4, "--api-workers", "2")
    ledger.add(*answers)  # none of them was cut: who answered was not killed
    return ledger


async def parent_killed_others_stopped(size: int) -> Ledger:
    """Stop the engine and both API workers, then kill the first process: they go on, and end."""
    answers, ledger = await _first_killed("its others stopped", size, 4, "--api-workers", "2", stop=True)
    ledger.add(*answers)
    return ledger


async def only_worker_killed(size: int) -> Ledger:
    """Kill the first process, which is the one API worker: its engine ends, and leaves nothing."""
    answers, ledger = await _first_killed("one API worker", size, 2)
    ledger.add(*(answer.if_killed() for answer in answers))
    ledger.expect(ledger.ends[End.CUT] == size, "all connections broke, as there was nobody left to tell")
    return ledger


async def _first_killed(
    workers: str, size: int, processes: int, *flags: str, stop: bool = False
) -> tuple[list[Answer], Ledger]:
    ledger = Ledger(f"server killed -9 under load, {workers}")
    async with serving(*flags) as server:
        left = list(server.processes())
        ledger.expect(len(left) >= processes, f"there is an engine beside {workers}")
        ledger.expect(bool(server.sockets()), "the engine has a socket")
        streams = await _running(server, size, ENDLESS)
        for each in left[1:] if stop else ():
            os.kill(each, signal.SIGSTOP)
        server.process.kill()
        answers = await asyncio.gather(*streams)
    await _nothing_left(ledger, left)
    ledger.expect(not server.sockets(), "no socket is left")
    return answers, ledger


async def worker_lost(size: int) -> Ledger:
    """Kill one of two API workers, and stop the other: both are replaced, and only their streams break."""
    ledger = Ledger("API workers killed -9, and stopped (SIGSTOP)")
    async with serving("--api-workers", "2", "--worker-timeout", "2") as server:
        first, second = server.of("worker")
        replaced = await _replaced(server, ledger, first, signal.SIGKILL, size)
        await server.ready()
        woken = await _replaced(server, ledger, second, signal.SIGSTOP, size)
        ledger.note(f"replaced after {replaced:.1f} s and {woken:.1f} s")
        await server.until(lambda: _finishes(server), "requests are answered")
        answers = await asyncio.gather(*(ask(server.port, body(20)) for _ in range(size)))
        ledger.add(*answers)
        ledger.expect(all(answer.end is End.FINISHED for answer in answers), "all requests finish")
    return ledger


async def _replaced(server: Server, ledger: Ledger, worker: int, number: signal.Signals, size: int) -> float:
    """Send a signal to a worker while both have streams; return the seconds until it is replaced."""
    streams: list[asyncio.Task[Answer]] = []
    while len(streams) < size or not all(server.clients(each) for each in server.of("worker")):
        streams += await _running(server, PORTION, LASTING, seed=SLOW)
        assert len(streams) < 2 * size + 10 * PORTION, "both workers get streams"
    its = server.clients(worker)
    os.kill(worker, number)
    took = await server.until(lambda: _workers_without(server, worker), "a worker was replaced")
    answers = await asyncio.gather(*streams)
    cut = [answer.if_killed() for answer in answers if answer.port in its]
    others = [answer for answer in answers if answer.port not in its]
    ledger.add(*cut, *others)
    ledger.expect(all(answer.end is End.CUT for answer in cut), f"streams of its own break by {number.name}")
    ledger.expect(all(answer.end is End.FINISHED for answer in others), f"others finish after {number.name}")
    ledger.note(f"{number.name}: {len(cut)} streams were its own, {len(others)} the other's")
    return took


async def disk_full(size: int) -> Ledger:
    """Have everything that is logged find no room: requests don't notice, nor does the end."""
    ledger = Ledger("disk full for logs (/dev/full)")
    async with serving("--step-timeout", "5", output="/dev/full") as server:
        ledger.add(*await asyncio.gather(*(ask(server.port, body(20)) for _ in range(size))))
        running = await _running(server, 4, ENDLESS)
        os.kill(server.engine(), signal.SIGKILL)
        ledger.add(*await asyncio.gather(*running))
        await server.until(lambda: _is(server, 200, "/health"), "the engine is back")
        ledger.add(*await asyncio.gather(*(ask(server.port, body(20)) for _ in range(size))))
        server.process.send_signal(signal.SIGTERM)
        code = await server.ended()
    ledger.expect(ledger.ends[End.FINISHED] == 2 * size, "all but those of the killed engine finished")
    ledger.expect(code == 0, f"the exit code is 0, and not {code}")
    return ledger


async def clock_jumps(size: int) -> Ledger:
    """Have the time of day jump by up to a year at every look at it."""
    ledger = Ledger("time of day jumps by a year, to and fro")
    async with serving("--step-timeout", "5", "--keep-alive-seconds", "1", clock=True) as server:
        engine = server.engine()
        answers = await asyncio.gather(*(ask(server.port, body(60)) for _ in range(size)))
        health = await server.status("/health")
        stays = server.engine() == engine
        ledger.add(*answers)
    ledger.expect(all(answer.end is End.FINISHED for answer in answers), "all requests finish")
    ledger.expect(all(0 < answer.seconds < 60 for answer in answers), "each takes its own time")
    ledger.expect((health, stays) == (200, True), "the engine goes on")
    return ledger


async def _running(
    server: Server, size: int, tokens: int, seed: int | None = None
) -> list[asyncio.Task[Answer]]:
    """Start streams, and wait until each of them has begun."""
    heard = [asyncio.Event() for _ in range(size)]
    streams = [
        asyncio.create_task(
            ask(server.port, body(tokens, prompt=f"Number {at}.", seed=seed), on_event=event.set)
        )
        for at, event in enumerate(heard)
    ]
    await asyncio.gather(*map(_begins, streams, heard))
    return streams


async def _begins(stream: asyncio.Task[Answer], heard: asyncio.Event) -> None:
    """Wait for a stream's first event; raise AssertionError with its answer if it ends without."""
    first = asyncio.create_task(heard.wait())
    await asyncio.wait((stream, first), return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not heard.is_set():
        raise AssertionError(f"a stream didn't begin: {stream.result()}")


async def _nothing_left(ledger: Ledger, processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while (left := [each for each in processes if not gone(each)]) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    ledger.expect(not left, f"every process has ended, but {left}")


async def _finishes(server: Server) -> bool:
    return (await ask(server.port, body(2))).end is End.FINISHED


async def _workers_without(server: Server, lost: int) -> bool:
    workers = server.of("worker")
    return len(workers) == 2 and lost not in workers


async def _is(server: Server, status: int, path: str) -> bool:
    return await server.status(path) == status
