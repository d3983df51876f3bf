"""How far a model's own code is off itself, by how it rounds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from inference.recurrent.layers import cache_parameter

LOG = logging.getLogger(__name__)

MASKED = -1e8  # a logit below it is none: models hide tokens by -inf, or by a type's least number
_NOISE_TOKENS = 24  # by which it is seen how a model rounds


def leaves(model: nn.Module) -> list[nn.Module]:
    """Return the modules that have none within."""
    return [each for each in model.modules() if next(each.children(), None) is None]


@contextmanager
def moving(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Have the numbers that modules give moved, at random, by up to a rounding of each."""
    move = _moves()
    hooks = [module.register_forward_hook(move) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _moves() -> Callable[[nn.Module, object, object], object]:
    """Return the hook that does so; what is no tensor of numbers stays."""
    generator = torch.Generator().manual_seed(0)

    def move(_: nn.Module, __: object, given: object) -> object:
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        by = torch.rand(given.shape, generator=generator).to(given.device) - 0.5
        return (given.float() * (1 + torch.finfo(given.dtype).eps * by)).to(given.dtype)

    return move


@torch.inference_mode()
def noise_of_pieces(model: PreTrainedModel, prompt: NDArray[np.int64], expected: Tensor) -> float:
    """Return how far a prompt's logits are off when the model's own code is given it token by token.

    Nothing if that can't be done.
    """
    ids = torch.from_numpy(prompt[:_NOISE_TOKENS])[None].to(model.device)
    try:
        cache = {cache_parameter(model): DynamicCache(config=model.config.get_text_config())}
        found = [model(input_ids=each, use_cache=True, **cache).logits[0] for each in ids.split(1, 1)]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model's code may take no such cache
        LOG.debug("It isn't known how a model rounds: %s", error)
        return 0.0
    logits = torch.cat(found).float()
    return apart(logits, expected[: len(logits)])


def apart(logits: Tensor, expected: Tensor) -> float:
    """Return the difference of logits (positions, vocabulary) as a part of their norm, the median of them."""
    shown = (expected > MASKED) & (logits > MASKED)
    difference, own = (each.where(shown, 0) for each in (logits - expected, logits))
    noise = float((difference.norm(dim=-1) / own.norm(dim=-1)).median())
    return noise if math.isfinite(noise) else 0.0
