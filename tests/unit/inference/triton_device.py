"""Where the tests of Triton's kernels compute: on a GPU, or on the CPU by Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is installed on Linux for x86-64 only")

INTERPRETED = bool(triton.knobs.runtime.interpret)  # see tests/conftest.py
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

_OLD = triton.__version__.startswith("3.6.") and tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4)
if INTERPRETED and _OLD:  # a loop's bounds are arrays to it, of which numpy makes no integers any more
    pytest.skip("the interpreter of Triton 3.6 needs numpy before 2.4", allow_module_level=True)
