"""The engine's tests run on one thread, and need torch."""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from tests.engine.models import save_model  # noqa: E402


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a Llama was saved."""
    directory = tmp_path_factory.mktemp("llama")
    save_model("llama", directory)
    return directory
