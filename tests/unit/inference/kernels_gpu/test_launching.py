from __future__ import annotations

import torch

from inference.kernels.gpu.launching import compiling
from inference.kernels.gpu.norm import rms_norm
from tests.unit.inference.triton_device import DEVICE


def test_kernels_that_are_compiled_compute_nothing_until_they_are_launched() -> None:
    x, weight = torch.ones(2, 16, device=DEVICE), torch.full((16,), 3.0, device=DEVICE)
    out = torch.zeros_like(x)
    with compiling():
        rms_norm(x, weight, 0.0, out=out)
    assert (out == 0).all()
    rms_norm(x, weight, 0.0, out=out)
    assert (out == 3).all()


def test_modes_of_threads_are_their_own() -> None:
    from threading import Thread

    x, weight = torch.ones(1, 16, device=DEVICE), torch.ones(16, device=DEVICE)
    out = torch.zeros_like(x)
    with compiling():
        thread = Thread(target=rms_norm, args=(x, weight, 0.0), kwargs={"out": out})
        thread.start()
        thread.join()
    assert (out == 1).all()
