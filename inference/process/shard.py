"""`python -m inference.process.shard`: a shard of a model, started by the first one and nobody else."""

from __future__ import annotations

import socket
import sys

from inference.environment import SWITCH_SECONDS, prepare_environment
from inference.ipc.leash import die_with_parent
from inference.signals import outlive_endings

if __name__ == "__main__":
    die_with_parent()
    prepare_environment()
    sys.setswitchinterval(SWITCH_SECONDS)
    outlive_endings()  # requests run on
    if len(sys.argv) not in (2, 3):
        raise SystemExit("shards are started by the server: use `parley serve --num-shard`")
    import msgspec

    from inference.ipc.control import Control
    from inference.process.follower import follow
    from inference.shards.messages import Own

    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    follow(Control(line), *(msgspec.json.decode(each, type=Own) for each in sys.argv[2:]))
