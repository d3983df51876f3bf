"""What is done with the embedding before the layers read it: factors, positions' own rows, a norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.models.norms import Norm, is_norm, read_norm
from inference.models.other_shape import OtherShape
from inference.models.trace import Trace
from inference.models.weights import NarrowEmbedding

_SAME = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of the largest number
_FIRST_ROWS = (0, 1, 2)  # which row of a table is the first position's


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """What is added to the embedding, and the norm of that."""

    positions: Tensor | None = None  # (positions, hidden)
    norm: Tensor | None = None  # as in `Norm`
    eps: float | None = None


NOTHING = Added()


def find_added(model: PreTrainedModel, trace: Trace, rows: Tensor, first: int) -> tuple[float, Added] | None:
    """Return what the embedding is multiplied with, and what is added to it: what explains the trace.

    `rows`: what the embedding's table has for the trace's prompt; `first`: the first token's position.
    """
    given = trace.layers[0].given
    for norm in (None, *_norms(model, trace, rows.shape[1])):
        for table in (None, *_tables(model, rows, first)):
            added = torch.zeros_like(rows) if table is None else table[first : first + len(rows)]
            if norm is None:
                try:
                    factor = factor_of(rows, given.float() - added.to(rows), "before its layers")
                except OtherShape:
                    continue
                return factor, Added(table)
            if is_near(given, rows + added, lambda x, norm=norm: norm_of(norm, x)):  # type: ignore[misc]
                return 1.0, Added(table, norm.weights, norm.eps)
    return None


def norm_of(norm: Norm, x: Tensor) -> Tensor:
    """Return what a norm makes of rows."""
    if not norm.centred:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weights
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weights[0] + norm.weights[1]


def _norms(model: PreTrainedModel, trace: Trace, hidden: int) -> Iterator[Norm]:
    """Yield the norms that aren't in layers: the one behind them may be before them, too."""
    inside = {id(each) for layer in trace.layers for each in layer.layer.modules()}
    for module in model.modules():
        if is_norm(module) and id(module) not in inside:
            try:
                norm = read_norm(module, hidden)
            except OtherShape:
                continue
            if norm.weights.shape[-1] == hidden:
                yield norm


def _tables(model: PreTrainedModel, rows: Tensor, first: int) -> Iterator[Tensor]:
    """Yield what may be added: rows of other embeddings, from the first position's on."""
    own = model.get_input_embeddings()
    for module in model.modules():
        weight = module._parameters.get("weight")
        table = (
            isinstance(module, nn.Embedding | NarrowEmbedding) and module is not own and weight is not None
        )
        if table and weight is not None and weight.shape[1:] == rows.shape[1:]:
            for start in _FIRST_ROWS:
                if len(weight) >= start + first + len(rows):
                    yield weight.detach().float()[start:]


def factor_of(given: Tensor, result: Tensor, where: str) -> float:
    """Return what `given` was multiplied with; raise OtherShape if it was something else."""
    if torch.equal(given.to(result.dtype), result):
        return 1.0
    factor = float((given.double() * result.double()).sum() / given.double().square().sum())
    rounded = float(torch.tensor(factor, dtype=result.dtype))  # as models with weights in 16 bits keep it
    if torch.equal((given * rounded).to(result.dtype), result):
        return rounded
    if not is_near(result, given, lambda x: x * factor):
        raise OtherShape(f"something is computed {where}")
    return 1.0 if abs(factor - 1) <= _SAME[torch.float32] else factor


def is_near(result: Tensor, given: Tensor, function: Callable[[Tensor], Tensor]) -> bool:
    same = _SAME[result.dtype]
    return bool((function(given.float()) - result.float()).abs().max() <= same * result.abs().max())
