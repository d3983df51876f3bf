"""A mixture's experts in plain torch, one after the other: the host is told how many tokens each has."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from inference.gpu.mixtures import ExpertWeight, Routing


def route(index: Tensor, experts: int) -> Routing:
    """Return which experts compute which tokens (tokens, chosen)."""
    flat = index.flatten()
    flat = torch.where((flat >= 0) & (flat < experts), flat, experts)  # which stands for none
    order = flat.argsort(stable=True)
    counts = (flat[:, None] == torch.arange(experts, device=index.device)).sum(0)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=index.device)
    return Routing(
        index,
        experts,
        order.int(),
        places.masked_fill(flat == experts, -1).int(),
        pad(counts.cumsum(0), (1, 0)).int(),
    )


def multiply(x: Tensor, weight: ExpertWeight, routing: Routing, gathers: bool) -> Tensor:
    """Return (pairs, n) in the routing's order."""
    assert routing.order is not None, "they were sorted"
    assert routing.begins is not None, "they were sorted"
    result = x.new_zeros(routing.pairs, weight.outputs)
    begins = routing.begins.tolist()
    for expert, (begin, end) in enumerate(pairwise(begins)):
        if begin < end:
            rows = x[routing.order[begin:end] // routing.chosen] if gathers else x[begin:end]
            bias = None if weight.bias is None else weight.bias[expert]
            result[begin:end] = linear(rows, weight.expert(expert).to(x.dtype), bias)
    return result


def combine(found: Tensor, routing: Routing, scores: Tensor) -> Tensor:
    """Return (tokens, n), added up in float32."""
    assert routing.places is not None, "they were sorted"
    index, order = routing.index.sort(dim=1, stable=True)
    there = (index >= 0) & (index < routing.experts)
    places = routing.places.view(index.shape).gather(1, order).clamp(min=0)
    shares = scores.float().gather(1, order).masked_fill(~there, 0.0)
    result = found.new_zeros(len(index), found.shape[1], dtype=torch.float32)
    for turn in range(routing.chosen):
        rows = found[places[:, turn]].float().masked_fill(~there[:, turn, None], 0.0)
        result = result + shares[:, turn, None] * rows
    return result.to(found.dtype)
