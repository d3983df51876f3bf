"""Measure what the engine's process costs: a step's frame on both sides, its way, the start, the memory.

    python -m benchmarks.process [--repeats 2000] [--write]

Frames of 1, 32 and 256 tokens: processor time for encoding and sending in the engine, and for receiving and
decoding in the API process, each as the least of several runs. Their way: from the engine's thread to the
event loop, from another process (read by the event loop, and by a thread in its place) and from a thread of
the same process, in turns; the figures are medians of wall time. Start and memory: the embedded model, on one
thread, in both arrangements.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, about, machine
from benchmarks.process_way import ways
from inference.ipc.framing import Unframer, pack, unpack
from inference.ipc.messages import ENGINE_LIMIT, FROM_ENGINE
from inference.process.routing import Numbers, Routes
from inference.step_stats import StepStats
from inference.types import CoreOutput, Frame

TOKENS = (1, 32, 256)
ROUNDS = 9
STATS = StepStats(
    prefill_tokens=0,
    decode_sequences=32,
    admitted=0,
    cached_tokens=0,
    forward_seconds=0.01,
    sample_seconds=0.001,
    waiting=0,
    running=32,
    kv_tokens=4096,
    preempted=0,
)
START = """
import asyncio, json, os, sys, time
began = time.monotonic()
from inference.environment import prepare_environment
prepare_environment()
from inference.frontend.client import EngineClient
from inference.config import EngineConfig
from inference.text.pipeline import load_text
config = EngineConfig(threads=1)
separate = sys.argv[1] == "process"
if separate:
    from inference.process.spawned import SpawnedCore
    core = SpawnedCore(config)
else:
    from inference.engine.engine import TorchCore
    core = TorchCore(config)
def resident(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
async def main():
    client = EngineClient(core, config, lambda: load_text(config.model))
    await client.start(lambda line: None)
    seconds = time.monotonic() - began
    figures = {"seconds": round(seconds, 2), "api_mib": round(resident(os.getpid()))}
    if separate:
        figures["engine_mib"] = round(resident(core.process.pid))
    figures["torch_in_api"] = "torch" in sys.modules
    await client.close()
    print(json.dumps(figures))
asyncio.run(main())
"""


def main() -> None:
    """Print all figures, and write them if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help="write the result beside the others")
    arguments = parser.parse_args()
    frames = {str(tokens): frame_costs(tokens, arguments.repeats) for tokens in TOKENS}
    result = {
        **about(),
        "frames_us": frames,
        "way_us": {str(tokens): ways(tokens) for tokens in TOKENS},
        "start": {way: start(way) for way in ("thread", "process")},
    }
    print(json.dumps(result, indent=2))
    if arguments.write:
        (RESULTS / f"process-{machine()}.json").write_text(json.dumps(result, indent=2) + "\n")


# --- processor time of a frame ----------------------------------------------------------------


def frame_costs(tokens: int, repeats: int) -> dict[str, float]:
    """Return microseconds for a step of so many tokens, with the numbers of the step."""
    routes, numbers = Routes[str](), Numbers()
    for at in range(tokens):
        routes.add("api", numbers.add(f"request-{at}"), f"request-{at}#1.{at}")
    step = Frame(tuple(CoreOutput(f"request-{at}#1.{at}", 1000 + at, -0.5) for at in range(tokens)), STATS)
    ours, theirs = socket.socketpair()
    unframer = Unframer(ENGINE_LIMIT)

    def encode() -> bytes:
        (batch,) = routes.split(step).values()
        batch.stats = step.stats
        return pack(batch)

    frame = encode()

    def send() -> None:
        ours.send(encode())

    def receive() -> None:
        for payload in unframer.feed(theirs.recv(65_536)):
            numbers.frame(unpack(FROM_ENGINE, payload))

    def decode() -> None:
        for payload in unframer.feed(frame):
            numbers.frame(unpack(FROM_ENGINE, payload))

    figures: dict[str, float] = {"bytes": len(frame)}
    figures["encode"] = least(encode, repeats)
    figures["decode"] = least(decode, repeats)
    sent, received = [], []
    for _ in range(repeats):
        sent.append(spent(send))
        received.append(spent(receive))
    figures["encode_and_send"] = round(statistics.median(sent) * 1e6, 1)
    figures["receive_and_decode"] = round(statistics.median(received) * 1e6, 1)
    ours.close()
    theirs.close()
    return figures


def spent(work: Callable[[], object]) -> float:
    """Return the seconds of processor time that it takes once."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def least(work: Callable[[], object], repeats: int) -> float:
    """Return the microseconds that it takes in the best of several rounds."""

    def run() -> None:
        for _ in range(repeats):
            work()

    return round(min(spent(run) for _ in range(ROUNDS)) / repeats * 1e6, 2)


def start(way: str) -> dict[str, Any]:
    """Return the seconds until requests are taken, and the memory of each process then."""
    done = subprocess.run(
        [sys.executable, "-c", START, way],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[1],
        text=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
