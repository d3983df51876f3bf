"""`python -m inference.process`: the engine's process, started by `EngineProcess` and nobody else."""

from __future__ import annotations

import sys

from inference.environment import prepare_environment
from inference.ipc.leash import die_with_parent
from inference.process.deferred import torch_core

if __name__ == "__main__":
    die_with_parent()
    prepare_environment()
    from inference.process.child import main

    main(sys.argv[1:], torch_core)
