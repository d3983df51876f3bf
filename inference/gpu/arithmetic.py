"""How many operations a GPU does a second in steps with prompts: guessed, before anything is measured."""

from __future__ import annotations

import torch

_HOPPER = 9  # its major compute capability
# Of one processor in 16 bits. An H100's 132 do 4e14 together, about half of what they do in matrices alone;
# of others, which weren't measured, a sixth is expected
_OF_HOPPERS, _OF_OTHERS = 4e14 / 132, 5e11


def device_flops(device: torch.device) -> float:
    """Return it of a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    each = _OF_HOPPERS if properties.major >= _HOPPER else _OF_OTHERS
    return float(properties.multi_processor_count * each)
