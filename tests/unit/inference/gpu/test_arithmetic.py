from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from inference.gpu.arithmetic import device_flops  # noqa: E402


@pytest.mark.parametrize(
    ("major", "processors", "least", "most"),
    [
        (9, 132, 3.9e14, 4.1e14),  # H100
        (8, 108, 0.4e14, 3.1e14),  # A100
        (7, 40, 0.1e14, 0.6e14),  # T4
        (10, 148, 4e14, 2e15),  # B200
    ],
)
def test_no_more_is_expected_of_a_gpu_than_it_can(
    monkeypatch: pytest.MonkeyPatch, major: int, processors: int, least: float, most: float
) -> None:
    properties = SimpleNamespace(major=major, multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert least <= device_flops(torch.device("cuda")) <= most
