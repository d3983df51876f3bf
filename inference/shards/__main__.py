"""`python -m inference.shards`: a shard of a model, started by the first one and nobody else."""

from __future__ import annotations

import socket
import sys

from inference.environment import SWITCH_SECONDS, prepare_environment
from inference.process.leash import die_with_parent
from inference.signals import outlive_endings

if __name__ == "__main__":
    die_with_parent()
    prepare_environment()
    sys.setswitchinterval(SWITCH_SECONDS)
    outlive_endings()  # requests run on
    if len(sys.argv) not in (2, 3):
        raise SystemExit("shards are started by the server: use `parley serve --num-shard`")
    from inference.process.control import Control
    from inference.shards.follower import follow

    own = socket.socket(fileno=int(sys.argv[1]))
    own.set_inheritable(False)
    follow(Control(own), *sys.argv[2:])
