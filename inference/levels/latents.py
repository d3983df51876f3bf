"""Latent attention on a model's way down: over latents, unless that doesn't give the model's own logits."""

from __future__ import annotations

from collections.abc import Container

from torch import nn
from transformers import PreTrainedModel

from inference.levels.options import Options
from inference.levels.proof import Proof
from inference.models.attending import attend_by
from inference.models.latent import Latent, find_latents, forget_latents
from inference.models.paged import Probed, use_paged_attention


def choose_latents(model: PreTrainedModel, options: Options) -> list[Latent]:
    """Have latent attention keep latents alone, but for linears that adapters add to, and return it."""
    if not options.latents:
        return []
    return find_latents(model, () if options.adapters is None else options.adapters.paths)


def expand_latents(model: PreTrainedModel, latents: list[Latent]) -> dict[nn.Module, Probed]:
    """Have every head's keys and values kept, and return what attends."""
    attend_by(model, "eager")
    forget_latents(latents)
    return use_paged_attention(model)


def read_elsewhere(proof: Proof, latents: list[Latent]) -> Container[nn.Module]:
    """Return the linears whose weights something reads by itself."""
    return {*proof.bypassed, *(latent.linear for latent in latents)}
