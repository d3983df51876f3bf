"""The engine's tests run on one thread, and need torch."""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import pytest  # noqa: E402

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
