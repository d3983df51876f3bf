"""Faults of clients: they leave, they are too many, they don't read."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

from tests.faults.ledger import Answer, End, Ledger, percentile
from tests.faults.server import Server
from tests.faults.traffic import HOST, ask, body, get, head

TIMES_TOO_MANY = 10
ALONE = 8  # requests, one after the other
ARRIVAL_SECONDS = 1.0  # in which all of them come
SLACK_DESCRIPTORS = 8  # of the server's own: a file that is read, a connection that is being closed
READER_MIB = 64  # that clients who don't read may have the server hold
BEHIND = 4  # clients that don't read
TOP_TOKENS = 100
LEAVERS, ROUNDS, LOOKS = 1000, 40, 300  # sizes at length, at which times are judged too; CI judges none
IDLE_SECONDS = 1.0  # after the last client has left
PROBE_SECONDS = 0.05  # under full load, of 99 in 100
CROWDED_SECONDS = 0.15  # of a refusal or a probe with too many clients, of 99 in 100
SLOWER = 2.0  # times that an accepted request may take longer then, at the median


async def disconnects(server: Server, size: int) -> Ledger:
    """Have `size` clients leave in the middle of their streams, half of them without a word."""
    ledger = Ledger("clients disconnect mid-stream")
    bystander_wanted = body(300, prompt="Somebody who stays.")
    expected = await ask(server.port, bystander_wanted)
    await server.idle()
    files, memory = server.descriptors(), server.resident_bytes()
    bystander = asyncio.create_task(ask(server.port, bystander_wanted))
    room = asyncio.Semaphore(24)

    async def leave(at: int) -> Answer:
        async with room:
            asked = body(500, prompt=f"Tell me something about the number {at}.")
            while True:  # those that left a moment ago may still take their places
                answer = await ask(server.port, asked, leave_after=1 + at % 7)
                if answer.end is not End.OVERLOADED:
                    return answer
                await asyncio.sleep(0.05)

    answers = await asyncio.gather(*(leave(at) for at in range(size)))
    stayed = await bystander
    began = time.monotonic()
    await server.idle()
    took = time.monotonic() - began
    ledger.note(f"nothing ran {took:.2f} s after the last had left")
    if size >= LEAVERS:
        ledger.expect(took < IDLE_SECONDS, f"nothing ran {IDLE_SECONDS} s after the last had left")
    await server.until(lambda: _fewer(server, files), "files are closed")
    ledger.add(*answers, stayed)
    ledger.expect(ledger.ends[End.LEFT] == size, "every one of them had its stream until it left")
    ledger.expect(
        (stayed.end, stayed.text) == (End.FINISHED, expected.text), "the one who stayed got its text"
    )
    ledger.note(
        f"memory +{(server.resident_bytes() - memory) / 2**20:.1f} MiB, "
        f"files {server.descriptors() - files:+}"
    )
    return ledger


async def overload(server: Server, size: int) -> Ledger:
    """Have ten times as many clients as there are places ask on and on, `size` requests for each place."""
    ledger = Ledger(f"overload at {TIMES_TOO_MANY} times capacity")
    places = int((await _info(server))["max_concurrent_requests"])
    alone = [await ask(server.port, body(40, prompt=f"Nobody else asks {at}.")) for at in range(ALONE)]
    usual = await _crowd(server, places, places * size, patient=False)
    probes: list[tuple[int, float]] = []
    probing = asyncio.create_task(_probe(server, probes))
    crowd = await _crowd(server, places * TIMES_TOO_MANY, places * size, patient=True)
    probing.cancel()
    await server.idle()
    ledger.add(*alone, *usual, *crowd)
    refused = [answer for answer in crowd if answer.end is End.OVERLOADED]
    ledger.expect(set(ledger.ends) <= {End.FINISHED, End.OVERLOADED}, "all finished or were refused")
    ledger.expect(
        all(answer.end is End.FINISHED for answer in usual), "as many as there are places all finished"
    )
    ledger.expect(bool(refused), "some were refused")
    ledger.expect(all(int(answer.retry_after) >= 1 for answer in refused), "a refusal says when to come back")
    ledger.expect({status for status, _ in probes} == {200}, "/health says 200 all the while")
    for name, answers in (
        ("alone", alone),
        ("at capacity", usual),
        (f"at {TIMES_TOO_MANY} times capacity", crowd),
    ):
        good = [answer for answer in answers if answer.end is End.FINISHED]
        ledger.note(f"{name}: {len(good)} accepted, {_times(good)}")
    told = _quantiles([answer.seconds for answer in refused])
    ledger.note(f"at {TIMES_TOO_MANY} times capacity: {len(refused)} refused, {told}")
    ledger.note(f"at {TIMES_TOO_MANY} times capacity: /health {_quantiles([took for _, took in probes])}")
    if size >= ROUNDS:
        _expect_p99(ledger, "refusals", [answer.seconds for answer in refused], CROWDED_SECONDS)
        _expect_p99(ledger, "/health", [took for _, took in probes], CROWDED_SECONDS)
        slower = _median(crowd) / _median(usual)
        ledger.expect(
            slower <= SLOWER, f"the accepted took {SLOWER} times as long at most, and not {slower:.2f}"
        )
    return ledger


async def never_reads(server: Server, size: int) -> Ledger:
    """Have clients ask for long streams and read nothing, while others take all places left, `size` times."""
    ledger, memory = Ledger("clients that never read"), server.resident_bytes()
    places = int((await _info(server))["max_concurrent_requests"])
    deaf = await deaf_clients(server)
    others = await _crowd(server, places - BEHIND, size, patient=False)
    ledger.add(*others)
    ledger.expect(all(answer.end is End.FINISHED for answer in others), "all others finished")
    ledger.note(f"the others: {_times(others)}")
    await server.until(lambda: _ended_deaf(server), "their requests are ended")
    grown = server.resident_bytes() - memory
    ledger.expect(
        grown < READER_MIB * 2**20, f"memory grew by less than {READER_MIB} MiB, and not {grown:,} bytes"
    )
    ledger.note(f"memory +{grown / 2**20:.1f} MiB with {BEHIND} of them")
    for each in deaf:
        each.close()
    await server.idle()
    ledger.add(*(Answer(End.LEFT) for _ in deaf))
    return ledger


async def _ended_deaf(server: Server) -> bool:
    """Return whether all of them are told to read too slowly, or, on a busy machine, nothing in time."""
    return server.told("reads too slowly") + server.told("its client has read nothing") >= BEHIND


async def deaf_clients(server: Server) -> list[socket.socket]:
    """Have clients ask for more than any system's buffers hold, and read nothing."""
    wordy = body(900)
    wordy["parameters"]["top_n_tokens"] = TOP_TOKENS
    return [await asyncio.to_thread(_ask_and_sleep, server.port, wordy) for _ in range(BEHIND)]


async def probes(server: Server, size: int) -> Ledger:
    """Ask for health while the engine computes for as many as there are places."""
    ledger = Ledger("health under full load")
    places = int((await _info(server))["max_concurrent_requests"])
    load = asyncio.create_task(_crowd(server, places, places * 3, patient=False))
    seconds: dict[str, list[float]] = {path: [] for path in ("/health", "/livez", "/readyz")}
    for _ in range(size):
        for path, measured in seconds.items():
            status, _, took = await get(server.port, path)
            ledger.expect(status == 200, f"{path} says 200, and not {status}")
            measured.append(took)
        await asyncio.sleep(0.01)
    ledger.add(*await load)
    for path, measured in seconds.items():
        ledger.note(f"{path}: {_quantiles(measured)}")
        if size >= LOOKS:
            _expect_p99(ledger, path, measured, PROBE_SECONDS)
    return ledger


async def _probe(server: Server, answers: list[tuple[int, float]]) -> None:
    """Ask for health on and on, as an orchestrator does; keep the status and the seconds it took."""
    while True:
        status, _, took = await get(server.port, "/health")
        answers.append((status, took))
        await asyncio.sleep(0.02)


async def _crowd(server: Server, clients: int, requests: int, *, patient: bool) -> list[Answer]:
    """Have clients ask until so many were accepted; patient ones come again when they are told to."""
    answers: list[Answer] = []
    accepted = 0

    async def client(number: int) -> None:
        nonlocal accepted
        if patient:
            await asyncio.sleep(ARRIVAL_SECONDS * number / clients)
        while accepted < requests:
            answer = await ask(server.port, body(40, prompt=f"Client {number} asks."))
            answers.append(answer)
            accepted += answer.end is not End.OVERLOADED
            if patient and answer.end is End.OVERLOADED:
                await asyncio.sleep(int(answer.retry_after))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return answers


async def _fewer(server: Server, files: int) -> bool:
    return server.descriptors() <= files + SLACK_DESCRIPTORS


async def _told(server: Server, words: str) -> bool:
    return server.told(words) >= BEHIND


async def _info(server: Server) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((await get(server.port, "/info"))[1])
    return info


def _ask_and_sleep(port: int, asked: dict[str, Any]) -> socket.socket:
    """Send a request over a connection with little room, of which nothing is read."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.connect((HOST, port))
    stream.sendall(head("POST", "/generate_stream", json.dumps(asked).encode()))
    return stream


def _expect_p99(ledger: Ledger, what: str, seconds: list[float], limit: float) -> None:
    p99 = percentile(seconds, 0.99)
    ledger.expect(
        p99 < limit, f"99 of 100 {what} took less than {limit * 1000:.0f} ms, and not {p99 * 1000:.0f}"
    )


def _median(answers: list[Answer]) -> float:
    return percentile([answer.seconds for answer in answers if answer.end is End.FINISHED], 0.5)


def _times(answers: list[Answer]) -> str:
    first = _quantiles([answer.first_seconds for answer in answers])
    return f"first byte {first}; whole {_quantiles([answer.seconds for answer in answers])}"


def _quantiles(seconds: list[float]) -> str:
    p50, p99, most = (percentile(seconds, share) * 1000 for share in (0.5, 0.99, 1.0))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {most:.0f} ms"
