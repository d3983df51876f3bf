"""The parts of latent attention (latent.py) in a layer of which all parts are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from inference.models.joined import Linears, is_linear, named_linears
from inference.models.latent import EXPANDS, LINEAR, Latent, registered_latent
from inference.models.norms import norm_weight
from inference.models.other_shape import OtherShape

_MADE = "q_b_proj"  # the linear that makes queries of a few numbers, where one does
_INTO = (("q_proj", "kv_a_proj_with_mqa"), ("q_a_proj", "kv_a_proj_with_mqa"))
_OUT = (("o_proj",),)


@dataclass(frozen=True, slots=True, eq=False)
class LatentParts:
    """What is between the first linear of such attention and its last."""

    latent: Latent
    queries: Linears | None  # of what the first linear gives, once normalised; None: it gives queries
    query_norm: tuple[Tensor, float] | None  # weights and epsilon of that norm
    latent_norm: tuple[Tensor, float]
    rotated: int  # numbers of a key that are rotated, and of each query

    @property
    def modules(self) -> list[nn.Module]:
        """Return the linears that it has beside the first and the last."""
        queries = self.queries
        made = [] if queries is None else [queries.parent.get_submodule(name) for name in queries.names]
        return [self.latent.linear, *made]


def makes_latents(attention: nn.Module) -> bool:
    """Return whether a module has what latent attention makes keys and values by."""
    return hasattr(attention, EXPANDS) and hasattr(attention, LINEAR)


def read_latents(attention: Any) -> tuple[Linears, Linears, LatentParts]:
    """Return the linears around an attention to latents, and what is between them; raise OtherShape."""
    latent = registered_latent(attention)
    if latent is None:
        raise OtherShape("what its latents are isn't known")
    into, out = named_linears(attention, _INTO), named_linears(attention, _OUT)
    if into.in_few_bits not in (0, len(into.names)):
        raise OtherShape("what makes its queries and latents is in few bits in part")
    latent_norm = norm_weight(attention.kv_a_layernorm)
    rotated = into.sizes[1] - latent.rank
    queries, query_norm = None, None
    if into.names[0] != "q_proj":
        queries = named_linears(attention, ((_MADE,),))
        query_norm = norm_weight(attention.q_a_layernorm)
    made = into.sizes[0] if queries is None else queries.sizes[0]
    if rotated < 0 or made != latent.heads * (latent.nope + rotated):
        raise OtherShape("its queries and latents are of other sizes")
    if not is_linear(latent.linear):
        raise OtherShape(f"`{LINEAR}` is no linear")
    return into, out, LatentParts(latent, queries, query_norm, latent_norm, rotated)
