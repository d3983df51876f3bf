"""`python -m inference.process`: the engine's process, started by `EngineProcess` and nobody else."""

from __future__ import annotations

import sys

from inference.deferred import torch_core
from inference.environment import prepare_environment
from inference.process.leash import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    prepare_environment()
    from inference.process.child import main

    main(sys.argv[1:], torch_core)
