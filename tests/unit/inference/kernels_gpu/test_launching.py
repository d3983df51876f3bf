from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.compiler import CompiledKernel

from inference.kernels.gpu import launching
from inference.kernels.gpu.launching import compiling, launch
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


class Kernel:
    """Stands in for a kernel that takes x, n and COUNT; says what it was launched with, and by whom."""

    arg_names = ("x", "n", "COUNT", "OVERLAPS")

    def __init__(self) -> None:
        self.fn = object()
        self.launched: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = []
        kernel = self

        class Compiled(CompiledKernel):
            def __init__(self) -> None:
                self.module = None  # nothing to unload

            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                return lambda *args: kernel.launched.append(("compiled", grid, args))

        self.compiled = Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            self.launched.append(("found", grid, (*args, options)))
            return self.compiled

        return run


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(launching, "_overlapping", True)
    return Kernel()


def test_compiled_kernel_is_launched_without_being_looked_for_again(kernel: Kernel) -> None:
    x = torch.zeros(64)
    launch(kernel, (5,), x, 32, COUNT=7, num_warps=4)
    assert kernel.launched == [
        ("found", (5,), (x, 32, {"COUNT": 7, "num_warps": 4, "OVERLAPS": True, "launch_pdl": True}))
    ]
    launch(kernel, (6, 2), x, 48, COUNT=7, num_warps=4)  # 48 is a multiple of 16, too
    assert kernel.launched[1:] == [("compiled", (6, 2, 1), (x, 48, 7, True))]


@pytest.mark.parametrize(
    ("x", "n", "options"),
    [
        (torch.zeros(64)[1:], 32, {}),  # memory that isn't aligned
        (torch.zeros(64, dtype=torch.float64), 32, {}),
        (None, 32, {}),
        (torch.zeros(64), 33, {}),  # no multiple of 16
        (torch.zeros(64), 1, {}),
        (torch.zeros(64), 1 << 40, {}),  # 64 bits
        (torch.zeros(64), 1 << 63, {}),  # unsigned
        (torch.zeros(64), 32.0, {}),
        (torch.zeros(64), True, {}),
        (torch.zeros(64), 32, {"COUNT": 8}),
        (torch.zeros(64), 32, {"num_warps": 8}),
    ],
)
def test_another_form_is_looked_for(kernel: Kernel, x: object, n: object, options: dict[str, int]) -> None:
    usual = {"COUNT": 7, "num_warps": 4}
    launch(kernel, (1,), torch.zeros(64), 32, **usual)
    launch(kernel, (1,), x, n, **(usual | options))
    assert ["found", "found"] == [by for by, *_ in kernel.launched]


def test_kernels_come_up_early_or_not_as_it_was_said_last(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "can_overlap", lambda: True)
    for wanted in (True, False, True, False):
        launching.overlap_kernels(wanted=wanted)
        launch(kernel, (1,), torch.zeros(64), 32, COUNT=7)
    (first, _, early), (second, _, late), *again = kernel.launched
    assert (first, second) == ("found", "found")
    assert early[-1] == {"COUNT": 7, "OVERLAPS": True, "launch_pdl": True}
    assert late[-1] == {"COUNT": 7, "OVERLAPS": False}
    assert [("compiled", True), ("compiled", False)] == [(by, args[-1]) for by, _, args in again]


@pytest.mark.parametrize(
    ("capability", "hip", "expected"), [((9, 0), None, True), ((8, 6), None, False), ((9, 0), "6.4", False)]
)
def test_kernels_come_up_early_from_hopper_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: str | None, expected: bool
) -> None:
    monkeypatch.setattr(launching, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert expected == launching.can_overlap.__wrapped__()
