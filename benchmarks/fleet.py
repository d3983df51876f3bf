"""Measure several replicas: what the gateway costs, and what it gives that it knows who computed what.

    python -m benchmarks.fleet --folder FOLDER [--rounds 5] [--replicas 2]

Conversations of random words that go on by what was answered, each turn sent with all before it after a
moment in which somebody reads, over HTTP to `parley serve --replicas`, with and without `--prefix-affinity`,
in turn: the other server rests meanwhile. Then one small request after another, to the replicas and to a
server without, likewise. Needs the extra `ray`. FOLDER gets the model, if it isn't there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx

from benchmarks.machine import RESULTS, about, machine
from benchmarks.report import write as write_report
from benchmarks.serving.models import make_model
from benchmarks.serving.running import Running, running
from benchmarks.serving.servers import SERVERS
from benchmarks.serving.workloads import Words, Workload

MODEL = "llama-135m"
SERVER = "parley bf16 --dtype bfloat16"
CONVERSATIONS, TURNS = 8, 4
OPENING, SAID, ANSWERED = 1024, 32, 16  # tokens
READING_SECONDS = (0.2, 1.2)  # between an answer and the next turn, evenly
SMALL = 200  # requests of a round, one after the other
REST_SECONDS = 1.0
PATIENCE_SECONDS = 120.0


def main() -> None:
    """Measure, write the results down, and what is known into docs/benchmarks.md."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=2)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if not (folder / "models" / MODEL / "words.json").exists():
        make_model(folder / "models", MODEL)
    replicas = f"--replicas {arguments.replicas}"
    found = {
        **about(),
        "replicas": arguments.replicas,
        "rounds": arguments.rounds,
        "affinity": affinity(folder, replicas, arguments.rounds),
        "gateway": gateway(folder, replicas, arguments.rounds),
    }
    (RESULTS / f"fleet-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
    write_report()


def affinity(folder: Path, replicas: str, rounds: int) -> dict[str, float]:
    """Return the times in ms to the first token of later turns, means of all, with and without affinity."""
    words = Words(folder / "models" / MODEL)
    found: list[list[float]] = [[], []]
    with both(folder, replicas, f"{replicas} --prefix-affinity false") as servers:
        for number in range(rounds):
            openings = words.prompts(_of("openings", CONVERSATIONS, OPENING), number)
            said = words.prompts(_of("turns", CONVERSATIONS * TURNS, SAID), number)
            for each in (0, 1) if number % 2 == 0 else (1, 0):
                time.sleep(REST_SECONDS)
                found[each] += _talk(servers[each], openings, said, number)
    with_it, without = (1e3 * statistics.fmean(each) for each in found)
    print(f"first tokens of later turns: {with_it:.0f} ms with affinity, {without:.0f} ms without")
    return {"with_ms": with_it, "without_ms": without}


def gateway(folder: Path, replicas: str, rounds: int) -> dict[str, float]:
    """Return the median times in ms of a request for one token, through the gateway and without it."""
    with both(folder, replicas, "--compute-threads 1") as servers:
        found: list[list[float]] = [[], []]
        for number in range(rounds):
            for each in (0, 1) if number % 2 == 0 else (1, 0):
                time.sleep(REST_SECONDS)
                found[each].append(_small(servers[each]))
    through, direct = map(statistics.median, found)
    print(f"a small request: {through:.2f} ms through the gateway, {direct:.2f} ms without")
    return {"through_ms": through, "direct_ms": direct}


@contextmanager
def both(folder: Path, one: str, other: str) -> Iterator[list[Running]]:
    """Run two servers with these flags; both have answered something before."""
    server = next(server for server in SERVERS if server.label == SERVER)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running(
                    replace(server, command=f"{server.command} {flags}"),
                    MODEL,
                    folder,
                    folder / f"fleet-{number}-log",
                )
            )
            for number, flags in enumerate((one, other))
        ]
        for each in servers:
            _small(each)
        yield servers


def _of(name: str, requests: int, own: int) -> Workload:
    return Workload(name=name, clients=CONVERSATIONS, requests=requests, own=own)


def _talk(server: Running, openings: list[str], said: list[str], seed: int) -> list[float]:
    """Have all conversations at once; return the seconds to the first token of each later turn."""
    with ThreadPoolExecutor(len(openings)) as threads:
        jobs = [
            threads.submit(
                _conversation, server.port, opening, said[at::CONVERSATIONS], Random(f"{seed}/{at}")
            )
            for at, opening in enumerate(openings)
        ]
        return [first for job in jobs for first in job.result()[1:]]


def _conversation(port: int, opening: str, said: list[str], random_: Random) -> list[float]:
    text, firsts = opening, []
    with httpx.Client(timeout=PATIENCE_SECONDS, base_url=f"http://127.0.0.1:{port}") as client:
        for line in said:
            text += line
            first, answer = _turn(client, text)
            firsts.append(first)
            text += answer
            time.sleep(random_.uniform(*READING_SECONDS))
    return firsts


def _turn(client: httpx.Client, prompt: str) -> tuple[float, str]:
    """Return the seconds to the first token and the text; raises RuntimeError if there is an error."""
    body = {
        **{"model": "m", "prompt": prompt, "max_tokens": ANSWERED, "stream": True},
        **{"temperature": 0, "ignore_eos": True},
    }
    began, first, parts = time.monotonic(), 0.0, list[str]()
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            told = json.loads(line[6:])
            if "error" in told:
                raise RuntimeError(f"a turn failed: {told['error']}")
            first = first or time.monotonic() - began
            parts.append(told["choices"][0]["text"])
    if not parts:
        raise RuntimeError(f"a turn was answered with {response.status_code}")
    return first, "".join(parts)


def _small(server: Running) -> float:
    """Return the median time in ms of requests for one token."""
    body = {"inputs": "one", "parameters": {"max_new_tokens": 1}}
    took = []
    with httpx.Client(timeout=PATIENCE_SECONDS, base_url=f"http://127.0.0.1:{server.port}") as client:
        for _ in range(SMALL):
            began = time.monotonic()
            client.post("/generate", json=body).raise_for_status()
            took.append(time.monotonic() - began)
    return 1e3 * statistics.median(took)


if __name__ == "__main__":
    main()
