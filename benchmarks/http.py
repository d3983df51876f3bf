"""Measure the server's CPU time per request and per streamed token, beside Starlette and stock connexion.

    python -m benchmarks.http [--requests 2000] [--rounds 5] [--connections 16]

Each server runs in a process of its own on core 0, the client on core 1, over loopback; all generate with
the fake engine, whose share is the same for each. CPU time is counted by the server's process, and the least
of the rounds counts; a busy machine still adds a quarter, as caches are shared. Targets: 200 us per request,
which is reached, and 25 us per token, which is not while every token is a send of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from threading import Thread

import orjson
import uvicorn

from benchmarks.http_servers import CONSTANT, COUNT, ENGINE, SERVERS, make_service
from benchmarks.machine import RESULTS, about, machine
from handlers.http.server import server_config
from handlers.serving.serve import freeze
from handlers.settings.table import Settings

SERVER_CORE, CLIENT_CORE = 0, 1
STREAM_TOKENS = 100
STEP_SECONDS = 0.005  # of the engine while it streams: every token then is a send of its own
SMALL = {
    "inputs": "What is Deep Learning?",
    "parameters": {"max_new_tokens": 1, "temperature": 0.5, "seed": 42},
}
LONG = {"inputs": COUNT, "parameters": {"max_new_tokens": STREAM_TOKENS}}
KINDS = {"constant": (CONSTANT, 0.0), "engine": (ENGINE, 0.0), "paced": (ENGINE, STEP_SECONDS)}


@dataclass(frozen=True, slots=True)
class Result:
    """What one server needed."""

    server: str
    http_us: float  # CPU of the server for a request that is answered without the engine
    request_us: float  # CPU of the server for a request that generates one token
    token_us: float  # CPU of the server for a stream, divided by its tokens
    requests_per_second: float  # wall clock: it depends on what else runs


def main() -> None:
    """Measure all servers, print the table and write it down."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--requests", type=int, default=2000, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=list(SERVERS))
    arguments = parser.parse_args()
    _pin(CLIENT_CORE)
    results = [measure(name, arguments) for name in arguments.servers]
    for line in table(results):
        print(line)
    path = RESULTS / f"http-{machine()}.json"
    path.parent.mkdir(exist_ok=True)
    written = {**about(), "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(written, indent=2) + "\n")


def measure(name: str, arguments: argparse.Namespace) -> Result:
    """Start one server, with the engine and without, and return what it needs."""
    small, stream = raw_request("/generate", SMALL), raw_request("/generate_stream", LONG)
    requests, rounds, connections = arguments.requests, arguments.rounds, arguments.connections
    with started(name, "constant") as server:
        http = server.least_cpu(small, connections, requests, rounds)
    with started(name, "engine") as server:
        whole = server.least_cpu(small, connections, requests, rounds)
        rate = server.best_rate
    with started(name, "paced") as server:
        tokens = server.least_cpu(stream, connections, 2 * connections, rounds) / STREAM_TOKENS
    return Result(name, round(1e6 * http, 1), round(1e6 * whole, 1), round(1e6 * tokens, 1), round(rate, 1))


def table(results: list[Result]) -> Iterator[str]:
    """Yield the lines of the report; each number is followed by its ratio to the first server's."""
    columns = ("http_us", "request_us", "token_us")
    yield f"{'server':<12}" + "".join(f"{column:>12}{'':>8}" for column in columns) + f"{'requests/s':>12}"
    for result in results:
        line = f"{result.server:<12}"
        for column in columns:
            value: float = getattr(result, column)
            line += f"{value:>12.1f}{value / getattr(results[0], column):>7.2f}x"
        yield line + f"{result.requests_per_second:>12.0f}"


async def load(port: int, request: bytes, connections: int, count: int) -> None:
    """Send `count` requests over keep-alive connections, each waiting for its answer."""
    share = [count // connections + (index < count % connections) for index in range(connections)]
    async with asyncio.TaskGroup() as group:
        for part in share:
            group.create_task(_converse(port, request, part))


async def _converse(port: int, request: bytes, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        for _ in range(count):
            writer.write(request)
            await _read_answer(reader)
    finally:
        writer.close()
        await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not answered: {head[:200]!r} {await reader.read(500)!r}")
    length = re.search(rb"content-length: (\d+)", head)
    if length is not None:
        await reader.readexactly(int(length[1]))
        return
    stream = await reader.readuntil(b"\r\n0\r\n\r\n")
    if stream.count(b"data: {") != STREAM_TOKENS:
        raise RuntimeError(f"not {STREAM_TOKENS} tokens: {stream[:200]!r}")


def raw_request(path: str, body: object) -> bytes:
    """Return the bytes of a request."""
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\nuser-agent: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@contextmanager
def started(name: str, kind: str) -> Iterator[MeasuredServer]:
    """Run a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(name, kind, theirs), daemon=True)
    process.start()
    try:
        yield MeasuredServer(ours.recv(), ours)
    finally:
        process.terminate()
        process.join()


class MeasuredServer:
    """A running server that tells how much CPU time its process has used."""

    def __init__(self, port: int, pipe: Connection) -> None:
        self.best_rate = 0.0  # requests per second of the last measurement
        self._port = port
        self._pipe = pipe

    def least_cpu(self, request: bytes, connections: int, count: int, rounds: int) -> float:
        """Return the CPU seconds of one request, the least of several rounds of `count`, after a warm-up."""
        asyncio.run(load(self._port, request, connections, max(count // 4, connections)))
        measured = [self._round(request, connections, count) for _ in range(rounds)]
        self.best_rate = 1 / min(wall for _, wall in measured)
        return min(cpu for cpu, _ in measured)

    def _round(self, request: bytes, connections: int, count: int) -> tuple[float, float]:
        cpu, wall = self._cpu(), time.perf_counter()
        asyncio.run(load(self._port, request, connections, count))
        return (self._cpu() - cpu) / count, (time.perf_counter() - wall) / count

    def _cpu(self) -> float:
        self._pipe.send("cpu")
        seconds: float = self._pipe.recv()
        return seconds


def serve(name: str, kind: str, pipe: Connection) -> None:
    """Run a server and answer on `pipe`: the port first, then CPU seconds whenever asked."""
    _pin(SERVER_CORE)
    operations, step_seconds = KINDS[kind]
    app = SERVERS[name](make_service(step_seconds), operations)
    config = server_config(app, Settings(hostname="127.0.0.1"))
    config.port = 0
    server = uvicorn.Server(config)
    Thread(target=_answer, args=(server, pipe), daemon=True).start()
    server.run()


def _answer(server: uvicorn.Server, pipe: Connection) -> None:
    while not server.started:
        time.sleep(0.01)
    time.sleep(0.5)  # the fake engine loads in a moment
    freeze()  # as `parley serve` does, for each server
    pipe.send(server.servers[0].sockets[0].getsockname()[1])
    while pipe.recv() == "cpu":
        pipe.send(time.process_time())


def _pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


if __name__ == "__main__":
    main()
