"""`python -m inference.process`: the engine's process, started by `EngineProcess` and nobody else."""

from __future__ import annotations

import sys

from inference.config import EngineConfig
from inference.core import LocalCore
from inference.environment import prepare_environment
from inference.errors import ModelUnavailable


def torch_core(config: EngineConfig) -> LocalCore:
    """Return a core over torch; raise ModelUnavailable where that isn't installed."""
    try:
        from inference.engine import TorchCore
    except ModuleNotFoundError as error:
        raise ModelUnavailable(
            f"{error.name} is not installed, and the engine needs it: pip install 'parley[engine]'"
        ) from error
    return TorchCore(config)


if __name__ == "__main__":
    prepare_environment()
    from inference.process.child import main

    main(sys.argv[1:], torch_core)
