"""`python -m tests.faults.launch ...`: `parley serve`, with an engine in which things go wrong.

With FAULT_CLOCK the time of day jumps by up to a year, to and fro, at every look.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import partial

CLOCK = "FAULT_CLOCK"
YEAR = 365 * 24 * 3600.0


def jump() -> None:
    """Have the time of day jump, as it does when somebody sets it; the monotonic clock goes on."""
    real, dice = time.time, random.Random(0)
    time.time = lambda: real() + dice.choice((-YEAR, -3600.0, 0.0, 3600.0, YEAR))


def main() -> int:
    """Serve; returns the exit code."""
    if os.environ.get(CLOCK):
        jump()
    from handlers import cli
    from handlers.serving import workers
    from inference.process import spawned, supervision
    from tests.faults.poison import PROGRAM

    vars(supervision)["BACK_OFF_SECONDS"] = (0.2, 0.5, 1.0)
    faulty = partial(supervision.EngineProcess, program=PROGRAM)
    vars(workers)["EngineProcess"] = faulty
    spawned.SpawnedCore.__init__.__defaults__ = (faulty,)
    return cli.launcher(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
