"""What holds of whatever model is served at the level fused, beside its own code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.kernels.native import Library
from inference.levels.served import Level, Served
from inference.loading.level import Options, bring_up
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits


def serve(model: PreTrainedModel, library: Library, **options: Any) -> Served:
    return bring_up(model, Options(library=library, max_total_tokens=256, **options))


def assert_near(found: Tensor, expected: Tensor, near: float = 1e-4) -> None:
    assert (found - expected).norm() <= near * expected.norm()


def assert_says_the_same(model: PreTrainedModel, library: Library, **options: Any) -> Served:
    """Hold a model's logits against those of its own code, and return it as it is served."""
    expected = own_logits(model, PROMPT)
    served = serve(model, library, **options)
    assert served.level is Level.FUSED, served.reason
    assert_near(served_logits(served, 21), expected)
    return served


def assert_same_bits(
    model: PreTrainedModel, library: Library, sizes: tuple[int, ...] = (1, 16, 33), **options: Any
) -> None:
    """Hold the logits of a prompt in pieces, beside another sequence, against those of all of it."""
    served = serve(model, library, **options)
    assert served.level is Level.FUSED, served.reason
    whole = served_logits(served, len(PROMPT))
    for size in sizes:
        assert torch.equal(served_logits(served, size), whole)
