"""Bring faults about, at length, and tell what was sent, what came back, and what was lost.

    python -m tests.faults [--quick] [--only WORD] [--write FILE]

Each fault is brought about in a server of the embedded model; nothing that was accepted may be without an
end. Ends with 1 if a promise was broken. CI runs the same with fewer requests: tests/faults/test_faults.py.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import client_faults, engine_faults, grammar_faults, life_faults
from tests.faults.ledger import Ledger
from tests.faults.server import Server, serving

FLAGS = (
    *("--max-concurrent-requests", "32", "--step-timeout", engine_faults.STEP_TIMEOUT),
    *("--max-top-n-tokens", str(client_faults.TOP_TOKENS)),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, with how many requests it meets in CI and at length."""

    bring: Callable[[Server, int], Coroutine[Any, Any, Ledger]]
    quick: int
    long: int


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A fault that needs a server of its own."""

    bring: Callable[[int], Coroutine[Any, Any, Ledger]]
    quick: int
    long: int


SHARED = (
    Fault(client_faults.disconnects, 200, client_faults.LEAVERS),
    Fault(client_faults.overload, 4, client_faults.ROUNDS),
    Fault(client_faults.never_reads, 12, 100),
    Fault(client_faults.probes, 20, client_faults.LOOKS),
    Fault(grammar_faults.compiler_killed, 12, 100),
    Fault(engine_faults.raises, 8, 24),
    Fault(engine_faults.raises_beside, 8, 24),
    Fault(engine_faults.no_memory, 12, 24),
    Fault(engine_faults.killed, 12, 24),
    Fault(engine_faults.stopped, 12, 24),
    Fault(engine_faults.hangs, 12, 24),
    Fault(engine_faults.crashes, 12, 24),
)
OWN = (
    OwnServer(life_faults.terminated, 12, 60),
    OwnServer(life_faults.disk_full, 10, 50),
    OwnServer(life_faults.clock_jumps, 10, 50),
    OwnServer(life_faults.worker_lost, 10, 50),
    OwnServer(life_faults.parent_killed, 10, 24),
    OwnServer(life_faults.parent_killed_others_stopped, 10, 24),
    OwnServer(life_faults.only_worker_killed, 10, 24),
)


async def run(word: str, *, quick: bool) -> list[Ledger]:
    """Bring about the faults whose names hold a word, and return their accounts."""
    ledgers = []
    shared = [fault for fault in SHARED if word in fault.bring.__name__]
    if shared:
        async with serving(*FLAGS) as server:
            for fault in shared:
                ledgers.append(await fault.bring(server, fault.quick if quick else fault.long))
                print(ledgers[-1], flush=True)
    for own in OWN:
        if word in own.bring.__name__:
            ledgers.append(await own.bring(own.quick if quick else own.long))
            print(ledgers[-1], flush=True)
    return ledgers


def main() -> int:
    """Run the suite; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="as few requests as in CI")
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose name holds it")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the accounts")
    options = parser.parse_args()
    ledgers = asyncio.run(run(options.only, quick=options.quick))
    if options.write:
        options.write.write_text("".join(f"{ledger}\n" for ledger in ledgers))
    return 1 if not ledgers or any(ledger.wrong for ledger in ledgers) else 0


if __name__ == "__main__":
    sys.exit(main())
