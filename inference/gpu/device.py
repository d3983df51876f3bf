"""What an engine's thread has to do with the device itself; nothing on a CPU."""

from __future__ import annotations

import torch


def begin_device(device: torch.device) -> None:
    """Have cuBLAS begin in this thread before a request comes: it keeps a handle and memory for each."""
    if device.type == "cuda":
        with torch.inference_mode():
            some = torch.ones(16, 16, device=device)
            torch.mm(some, some)
        torch.cuda.synchronize(device)


def check_device(device: torch.device) -> None:
    """Raise what has broken the GPU for this process: after some faults every call to CUDA fails."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
