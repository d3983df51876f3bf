"""Measure what hostile grammars cost the others: the inter-token latency of 8 streams, without and with them.

    python -m benchmarks.isolation [--seconds 15] [--streams 8] [--write]

The server runs on the embedded model in a process of its own. Streams without a grammar are read all the
time; first nothing else is sent, then requests whose schema or regex is made to exhaust a compiler, one at a
time and without a pause. Each hostile answer must be a 422, or a 200 whose grammar was within the limits, and
its time is printed beside the limit. The ratio of the latencies is the measure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from benchmarks.machine import RESULTS, machine
from inference.grammar_limits import GrammarLimits
from tests.structured.hostile import REGEXES, SCHEMAS

START_SECONDS = 120
STREAM = {
    "inputs": "Once upon a time",
    "parameters": {"max_new_tokens": 900, "ignore_eos": True, "temperature": 0.8},
}
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Latency:
    """Inter-token latency of all streams of one phase, in milliseconds."""

    tokens: int
    p50: float
    p99: float
    largest: float

    @classmethod
    def of(cls, gaps: list[float]) -> Latency:
        """Return the figures of gaps in seconds."""
        cut = statistics.quantiles(gaps, n=100)
        return cls(len(gaps), *(round(1000 * value, 2) for value in (cut[49], cut[98], max(gaps))))


@dataclass(slots=True)
class Answers:
    """How one kind of hostile request was answered."""

    statuses: dict[int, int] = field(default_factory=dict)
    slowest: float = 0.0  # seconds
    message: str = ""

    def add(self, response: httpx.Response, seconds: float) -> None:
        """Count an answer."""
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        self.slowest = max(self.slowest, seconds)
        if response.is_error:
            self.message = response.json()["error"]


def main() -> None:
    """Print both phases and what became of each hostile request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write the result beside the others")
    arguments = parser.parse_args()
    with server() as url:
        without, with_, hostile = asyncio.run(measure(url, arguments.streams, arguments.seconds))
    limit = GrammarLimits().seconds
    print(f"{arguments.streams} streams, ms between tokens        p50      p99      max   tokens")
    for name, latency in (("without", without), ("with hostile grammars", with_)):
        print(f"{name:36} {latency.p50:9.2f}{latency.p99:9.2f}{latency.largest:9.2f}{latency.tokens:9}")
    print(f"{'ratio':36} {with_.p50 / without.p50:9.2f}{with_.p99 / without.p99:9.2f}\n")
    for name, answers in hostile.items():
        counts = ", ".join(f"{count} x {status}" for status, count in sorted(answers.statuses.items()))
        print(
            f"{name:30} {counts:12} slowest {answers.slowest:5.2f} s of {limit} s  {answers.message[24:120]}"
        )
    if arguments.write:
        write(without, with_, hostile)


def hostile_bodies() -> dict[str, Body]:
    """Return requests whose grammar is meant to exhaust a compiler, by name."""
    grammars = {name: {"type": "json", "value": schema} for name, schema in SCHEMAS.items()}
    grammars |= {name: {"type": "regex", "value": regex} for name, regex in REGEXES.items()}
    return {
        name: {"inputs": "x", "parameters": {"max_new_tokens": 8, "grammar": grammar}}
        for name, grammar in grammars.items()
    }


async def measure(url: str, streams: int, seconds: float) -> tuple[Latency, Latency, dict[str, Answers]]:
    """Return the latency without and with the hostile requests, and how these were answered."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        gaps: list[float] = []
        async with reading(client, streams, gaps):
            await asyncio.sleep(2)  # until all prompts are computed
            gaps.clear()
            await asyncio.sleep(seconds)
            without = Latency.of(gaps)
            gaps.clear()
            hostile = await attack(client, seconds)
            return without, Latency.of(gaps), hostile


@asynccontextmanager
async def reading(client: httpx.AsyncClient, streams: int, gaps: list[float]) -> AsyncIterator[None]:
    """Read streams side by side, and put the time between two tokens of each to `gaps`."""
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read(client, gaps)) for _ in range(streams)]
        yield
        for reader in readers:
            reader.cancel()


async def read(client: httpx.AsyncClient, gaps: list[float]) -> None:
    """Read one stream after the other."""
    while True:
        last = 0.0
        async with client.stream("POST", "/generate_stream", json=STREAM) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    now = time.perf_counter()
                    if last:
                        gaps.append(now - last)
                    last = now


async def attack(client: httpx.AsyncClient, seconds: float) -> dict[str, Answers]:
    """Send hostile requests in turn until the time is up, each a new one to every cache."""
    bodies = hostile_bodies()
    answers = {name: Answers() for name in bodies}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for name, body in bodies.items():
            started = time.perf_counter()
            response = await client.post("/generate", json=fresh(body, turn))
            answers[name].add(response, time.perf_counter() - started)
        turn += 1
    return answers


def fresh(body: Body, turn: int) -> Body:
    """Return the body with a grammar that says the same in text that was not sent before."""
    grammar = dict(body["parameters"]["grammar"])
    if grammar["type"] == "regex":
        grammar["value"] += "b" * turn
    else:
        grammar["value"] |= {"title": str(turn)}
    return {**body, "parameters": {**body["parameters"], "grammar": grammar}}


@contextmanager
def server() -> Iterator[str]:
    """Run Parley on the embedded model, and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "handlers", "serve", "--hostname", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait(url)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait(url: str) -> None:
    """Return once the server is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass  # it doesn't listen yet
        time.sleep(0.1)
    raise TimeoutError("the server didn't start")


def write(without: Latency, with_: Latency, hostile: dict[str, Answers]) -> None:
    """Write the result beside the others."""
    path = RESULTS / f"isolation-{machine()}.json"
    result = {
        "without": asdict(without),
        "with": asdict(with_),
        "hostile": {name: asdict(answers) for name, answers in hostile.items()},
    }
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
