from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from inference.gpu.compiling import compile_together
from inference.gpu.torch_ops import TorchOps


class Kernels(TorchOps):
    captures = True


def test_operations_that_compile_nothing_are_left_alone() -> None:
    compile_together(TorchOps(), lambda: pytest.fail("it was launched"))


def test_what_goes_wrong_is_left_to_the_launch_that_is_meant() -> None:
    launched = []

    def launches() -> None:
        launched.append(1)
        raise RuntimeError("no number here was ever computed")

    compile_together(Kernels(), launches)
    assert launched == [1]
